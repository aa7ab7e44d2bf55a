package replay

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// pickler writes what Python's pickle.load and the memory_viz page of PyTorch read: protocol 2, with strings written
// once and referred to from then on.
// (Python's Lib/pickletools.py; torch/utils/viz/MemoryViz.js)
type pickler struct {
	to      *bufio.Writer
	strings map[string]byte // where they are in the reader's memo
}

// dict is keys and values in turn.
type dict []any

// list is a Python list of so many, each made when it is written.
type list struct {
	length int
	at     func(int) any
}

// most is how many items a reader takes at once.
const most = 1000

// writePickle writes a dict, list, string, bool, int or uint64 below 2^63. Errors: the writer's.
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
		_ = w.WriteByte(']')
		for i := range v.length {
			if i%most == 0 {
				_ = w.WriteByte('(')
			}
			p.put(v.at(i))
			if i%most == most-1 || i == v.length-1 {
				_ = w.WriteByte('e')
			}
		}
	case string:
		if at, known := p.strings[v]; known {
			_, _ = w.Write([]byte{'h', at})
			return
		}
		_, _ = w.Write(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(v))))
		_, _ = w.WriteString(v)
		if at := len(p.strings); at < 256 {
			p.strings[v] = byte(at)
			_, _ = w.Write([]byte{'q', byte(at)})
		}
	case bool:
		_ = w.WriteByte(map[bool]byte{false: 0x89, true: 0x88}[v])
	case int:
		p.put(uint64(v))
	case uint64:
		_, _ = w.Write(binary.LittleEndian.AppendUint64([]byte{0x8a, 8}, v)) // LONG1
	default:
		panic(fmt.Sprintf("no way to pickle a %T", value))
	}
}
