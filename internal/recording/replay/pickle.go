package replay

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// pickler writes what Python's pickle.load and the memory_viz page of PyTorch read: protocol 2, each string once and
// then references to it. (Python's Lib/pickletools.py; torch/utils/viz/MemoryViz.js)
type pickler struct {
	to      *bufio.Writer
	strings map[string]byte // where they are in the reader's memo
}

// dict has keys and values in turn.
type dict []any

// list is a Python list whose elements are made when they are written.
type list struct {
	length int
	at     func(int) any
}

func listOf(all []any) list { return list{len(all), func(i int) any { return all[i] }} }

// writePickle writes a dict, list, string, false or uint64 below 2^63. Errors: the writer's.
func writePickle(to io.Writer, value any) error {
	p := &pickler{bufio.NewWriter(to), map[string]byte{}}
	_, _ = p.to.Write([]byte{0x80, 2}) // PROTO; errors stay until Flush
	p.put(value)
	_ = p.to.WriteByte('.')
	return p.to.Flush()
}

func (p *pickler) put(value any) {
	w := p.to
	switch v := value.(type) {
	case dict:
		_, _ = w.WriteString("}(")
		for _, item := range v {
			p.put(item)
		}
		_ = w.WriteByte('u')
	case list:
		_, _ = w.WriteString("](")
		for i := range v.length {
			p.put(v.at(i))
		}
		_ = w.WriteByte('e')
	case string:
		if at, known := p.strings[v]; known {
			_, _ = w.Write([]byte{'h', at})
			return
		}
		_, _ = w.Write(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(v))))
		_, _ = w.WriteString(v)
		p.strings[v] = byte(len(p.strings)) // there are few
		_, _ = w.Write([]byte{'q', p.strings[v]})
	case bool:
		_ = w.WriteByte(0x89) // NEWFALSE
	case uint64:
		_, _ = w.Write(binary.LittleEndian.AppendUint64([]byte{0x8a, 8}, v)) // LONG1
	default:
		panic(fmt.Sprintf("no way to pickle a %T", value))
	}
}
