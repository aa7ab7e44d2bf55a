package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// CRIU writes the private memory of a process into a file pages-N.img, page after page, and what is where into a
// pagemap: two magic numbers, then protobuf messages, each after its length: pagemap_head, and a pagemap_entry for each
// range of addresses. (images/pagemap.proto, criu/include/magic.h)

// Pages is a file of pages.
type Pages struct {
	Name string
	// Lengths are the bytes of its parts, in order. A part has the pages of one block of the program's addresses.
	Lengths []int64
}

const (
	imageMagic   = 0x54564319
	pagemapMagic = 0x56084025
	present      = 1 << 2 // of an entry's flags: its pages are in the file
)

// errForm says that an image of CRIU is not in the form that is known here.
var errForm = errors.New("this form of CRIU's images is not known")

// FindPages lists the files of pages in a folder of images, cut where the programs' addresses are multiples of block. A
// file whose pagemap has another form than is known here is not in the list.
func FindPages(folder string, block int64) (all []Pages, err error) {
	maps, err := filepath.Glob(filepath.Join(folder, "pagemap-*.img"))
	if err != nil {
		return nil, err
	}
	seen := map[uint64]bool{}
	for _, path := range maps {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		id, ranges, err := readPagemap(text)
		if err != nil || seen[id] {
			continue
		}
		seen[id] = true
		one := Pages{Name: fmt.Sprintf("pages-%d.img", id)}
		info, err := os.Stat(filepath.Join(folder, one.Name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a process without private memory
		}
		if err != nil {
			return nil, err
		}
		if one.Lengths, err = cut(ranges, info.Size(), int64(os.Getpagesize()), block); err == nil {
			all = append(all, one)
		}
	}
	return all, nil
}

// pageRange is a range of addresses. Its pages are in the file.
type pageRange struct {
	address, pages uint64
}

// readPagemap returns the number of the file of pages, and what it has, in order.
func readPagemap(text []byte) (id uint64, ranges []pageRange, err error) {
	if len(text) < 8 || binary.LittleEndian.Uint32(text) != imageMagic ||
		binary.LittleEndian.Uint32(text[4:]) != pagemapMagic {
		return 0, nil, errForm
	}
	for first, rest := true, text[8:]; first || len(rest) > 0; first = false {
		if len(rest) < 4 {
			return 0, nil, errForm
		}
		length := binary.LittleEndian.Uint32(rest)
		if rest = rest[4:]; uint64(length) > uint64(len(rest)) {
			return 0, nil, errForm
		}
		fields, err := numbersIn(rest[:length])
		if err != nil {
			return 0, nil, err
		}
		if rest = rest[length:]; first {
			if id = fields[1]; id == 0 || id > 1<<32-1 {
				return 0, nil, errForm
			}
			continue
		}
		if fields[3] != 0 { // in the files of an earlier dump
			return 0, nil, errForm
		}
		pages, has := fields[5] // since CRIU 4.2
		if !has {
			pages = fields[2]
		}
		if flags, has := fields[4]; !has || flags&present != 0 {
			ranges = append(ranges, pageRange{fields[1], pages})
		}
	}
	return id, ranges, nil
}

// numbersIn returns the fields of a protobuf message that are numbers, by their own numbers.
func numbersIn(message []byte) (map[uint64]uint64, error) {
	fields := map[uint64]uint64{}
	for len(message) > 0 {
		field, whole, bytes, err := nextField(message)
		if err != nil {
			return nil, err
		}
		if message = message[len(whole):]; bytes == nil && whole[0]&7 == 0 {
			_, key := binary.Uvarint(whole)
			fields[field], _ = binary.Uvarint(whole[key:])
		}
	}
	return fields, nil
}

// nextField returns the first field of a protobuf message: its number, all of it, and its bytes if it has some.
func nextField(message []byte) (field uint64, whole, value []byte, err error) {
	key, n := binary.Uvarint(message)
	if n <= 0 {
		return 0, nil, nil, errForm
	}
	field, rest := key>>3, message[n:]
	size, has := uint64(0), false
	switch key & 7 {
	case 0:
		_, n := binary.Uvarint(rest)
		if n <= 0 {
			return 0, nil, nil, errForm
		}
		size = uint64(n)
	case 1:
		size = 8
	case 2:
		length, n := binary.Uvarint(rest)
		if n <= 0 {
			return 0, nil, nil, errForm
		}
		rest, size, has = rest[n:], length, true
	case 5:
		size = 4
	default:
		return 0, nil, nil, errForm
	}
	if size > uint64(len(rest)) {
		return 0, nil, nil, errForm
	}
	if has {
		value = rest[:size:size]
	}
	return field, message[:uint64(len(message)-len(rest))+size], value, nil
}

// cut returns the lengths of the parts of a file of pages.
func cut(ranges []pageRange, size, page, block int64) (lengths []int64, err error) {
	left, last := size, uint64(0)
	for _, r := range ranges {
		if r.pages > uint64(left/page) || r.address >= 1<<62 { // no program has such addresses
			return nil, errForm
		}
		left -= int64(r.pages) * page
		for at, end := r.address, r.address+r.pages*uint64(page); at < end; {
			of := at / uint64(block)
			length := min(end, (of+1)*uint64(block)) - at
			if len(lengths) > 0 && of == last && lengths[len(lengths)-1]+int64(length) <= block {
				lengths[len(lengths)-1] += int64(length)
			} else {
				lengths = append(lengths, int64(length))
			}
			at, last = at+length, of
		}
	}
	if left != 0 {
		return nil, errForm
	}
	return lengths, nil
}
