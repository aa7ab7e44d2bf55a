package copying

import "tms/vmm/backup"

// Copy is a copy between device memory and a piece of what keeps contents.
type Copy struct {
	Device, Kept uintptr
	Size         uint64
	Piece        int
}

// Cut lists the copies between parts of a span and its kept contents, which begin at kept; each copy stays within one
// piece. A piece has so many bytes, and kept lies so far into the pieces (into).
func Cut(span backup.Span, kept uintptr, into, bytes uint64, parts []backup.Range) []Copy {
	var copies []Copy
	for _, part := range parts {
		for offset, end := part.Offset, part.Offset+part.Size; offset < end; {
			place := into + offset
			size := min(end-offset, bytes-place%bytes)
			copies = append(copies, Copy{
				Device: span.Address + uintptr(offset),
				Kept:   kept + uintptr(offset),
				Size:   size,
				Piece:  int(place / bytes),
			})
			offset += size
		}
	}
	return copies
}
