package criu

import (
	"encoding/binary"
	"regexp"
)

// CRIU's files.img has what processes have open: two magic numbers, then protobuf messages, each after its length. A
// message (file_entry) has a Unix socket (unix_sk_entry) in field usk, and that has the socket's name in field name. A
// name that begins with a zero is in no file system (abstract). (images/fdinfo.proto, images/sk-unix.proto)

const (
	filesMagic = 0x56303138
	usk        = 16
	name       = 11
)

// driverSocket is the name of a socket that NVIDIA's driver makes in each process: with the number of the PID namespace
// (its inode), and that of the process in it. The name ends with a zero (seen with driver 580.159.04).
var driverSocket = regexp.MustCompile(`^\x00cuda-uvmfd-[0-9]+-([0-9]+\x00?)$`)

// InNamespace returns files.img for processes that are restored in another PID namespace: the driver's sockets have the
// names that they would have there, so they are not those of the same processes elsewhere. All other bytes stay.
func InNamespace(files []byte, namespace string) ([]byte, error) {
	if len(files) < 8 || binary.LittleEndian.Uint32(files) != imageMagic || binary.LittleEndian.Uint32(files[4:]) != filesMagic {
		return nil, errForm
	}
	made := append([]byte{}, files[:8]...)
	for rest := files[8:]; len(rest) > 0; {
		if len(rest) < 4 {
			return nil, errForm
		}
		length := uint64(binary.LittleEndian.Uint32(rest))
		if rest = rest[4:]; length > uint64(len(rest)) {
			return nil, errForm
		}
		message, err := replaced(rest[:length], []uint64{usk, name}, func(name []byte) []byte {
			return driverSocket.ReplaceAll(name, []byte("\x00cuda-uvmfd-"+namespace+"-$1"))
		})
		if err != nil {
			return nil, err
		}
		made = append(binary.LittleEndian.AppendUint32(made, uint32(len(message))), message...)
		rest = rest[length:]
	}
	return made, nil
}

// replaced returns a protobuf message with another value in the field that a path of fields leads to.
func replaced(message []byte, path []uint64, with func(value []byte) []byte) (made []byte, err error) {
	for len(message) > 0 {
		field, whole, value, err := nextField(message)
		if err != nil {
			return nil, err
		}
		message = message[len(whole):]
		if value == nil || field != path[0] {
			made = append(made, whole...)
			continue
		}
		if len(path) == 1 {
			value = with(value)
		} else if value, err = replaced(value, path[1:], with); err != nil {
			return nil, err
		}
		made = binary.AppendUvarint(made, field<<3|2)
		made = append(binary.AppendUvarint(made, uint64(len(value))), value...)
	}
	return made, nil
}
