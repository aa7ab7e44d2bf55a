package criu

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// field is a field of a protobuf message that has bytes.
func field(number uint64, value []byte) []byte {
	message := binary.AppendUvarint(nil, number<<3|2)
	return append(binary.AppendUvarint(message, uint64(len(value))), value...)
}

func filesImage(messages ...[]byte) []byte {
	text := binary.LittleEndian.AppendUint32(nil, imageMagic)
	text = binary.LittleEndian.AppendUint32(text, filesMagic)
	for _, message := range messages {
		text = binary.LittleEndian.AppendUint32(text, uint32(len(message)))
		text = append(text, message...)
	}
	return text
}

// socket is an entry with a Unix socket of this name, as CRIU 4.2 writes it.
func socket(named string) []byte {
	options := field(10, entry(1, 212992, 2, 212992))
	return append(entry(1, 8, 2, 9), field(usk, append(append(entry(1, 9, 2, 27), options...), append(field(name, []byte(named)),
		entry(16, 2, 15, 0)...)...))...)
}

// The driver's sockets get the names that they would have in another PID namespace, and all else stays as it is.
func TestTheDriversSocketsInANamespace(t *testing.T) {
	file := append(entry(1, 1, 2, 3), field(3, append(entry(1, 3), field(6, []byte("\x00cuda-uvmfd-4026531836-7"))...))...)
	image := func(driver string) []byte {
		return filesImage(file, socket(driver), socket("\x00cuda-uvmfd-4026531836-7x"), socket("/tmp/cuda-uvmfd-4026531836-7"),
			socket(""), nil, socket("\x00server"))
	}
	made, err := InNamespace(image("\x00cuda-uvmfd-4026531836-7"), "4026532999")
	require.NoError(t, err)
	require.Equal(t, image("\x00cuda-uvmfd-4026532999-7"), made)
	made, err = InNamespace(image("\x00cuda-uvmfd-4026531836-71234"), "1") // of another length
	require.NoError(t, err)
	require.Equal(t, image("\x00cuda-uvmfd-1-71234"), made)
	made, err = InNamespace(image("\x00cuda-uvmfd-4026531836-7\x00"), "1")
	require.NoError(t, err)
	require.Equal(t, image("\x00cuda-uvmfd-1-7\x00"), made)
}

// An image in another form is refused, and so is each beginning of one, unless it ends between two messages.
func TestOtherFiles(t *testing.T) {
	good := filesImage(socket("\x00cuda-uvmfd-4026531836-7"))
	for length := range len(good) {
		_, err := InNamespace(good[:length], "1")
		require.Equal(t, length == 8, err == nil, length)
	}
	for what, text := range map[string][]byte{
		"another magic":   append([]byte{1}, good[1:]...),
		"a pagemap":       pagemap(entry(1, 3)),
		"a long message":  append(bytes.Clone(good), 0xff, 0xff, 0xff, 0x7f, 1),
		"a long field":    filesImage([]byte{9<<3 | 2, 200}),
		"a group":         filesImage([]byte{9<<3 | 3}),
		"a field of none": filesImage(field(usk, []byte{name<<3 | 2, 9})),
	} {
		_, err := InNamespace(text, "1")
		require.ErrorIs(t, err, errForm, what)
	}
}

func FuzzInNamespace(f *testing.F) {
	f.Add(filesImage(socket("\x00cuda-uvmfd-4026531836-7"), socket("/tmp/x")))
	f.Fuzz(func(t *testing.T, text []byte) {
		made, err := InNamespace(text, "4026532999")
		if err == nil && !bytes.Contains(text, []byte("cuda-uvmfd-")) && len(made) == len(text) {
			again, err := InNamespace(made, "1")
			require.NoError(t, err)
			require.Len(t, again, len(made))
		}
	})
}
