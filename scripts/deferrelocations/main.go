// Command deferrelocations edits libtms.so after linking: relocations of the Go data (section
// .tms_godata) are taken from what the dynamic loader processes and left for enter.c to apply when
// the Go runtime is first needed. A process that only inherits the library then touches none of
// those pages. See docs/design/start.md.
//
// The relative relocations of .rela.dyn are put into a new order: those to keep, all others, those
// to defer. DT_RELASZ and DT_RELACOUNT then end before the deferred ones, and the two words of
// section .tms_deferred say where they start and how many there are.
package main

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: deferrelocations LIBRARY")
		os.Exit(2)
	}
	deferred, left, err := edit(os.Args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "deferrelocations: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	fmt.Printf("%d relocations deferred, %d left to the loader\n", deferred, left)
}

const relaSize = 24

// rela is an Elf64_Rela.
type rela struct {
	Offset, Info uint64
	Addend       int64
}

var relative = map[elf.Machine]uint32{
	elf.EM_X86_64:  uint32(elf.R_X86_64_RELATIVE),
	elf.EM_AARCH64: uint32(elf.R_AARCH64_RELATIVE),
}

func edit(path string) (deferred, left int, err error) {
	file, err := elf.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	kind, ok := relative[file.Machine]
	if !ok || file.Class != elf.ELFCLASS64 || file.ByteOrder != binary.LittleEndian {
		return 0, 0, errors.New("not a 64-bit little-endian library of a known machine")
	}
	godata, table, note, dynamic := file.Section(".tms_godata"), file.Section(".rela.dyn"),
		file.Section(".tms_deferred"), file.Section(".dynamic")
	if godata == nil || table == nil || note == nil || dynamic == nil {
		return 0, 0, errors.New("it has no .tms_godata, .rela.dyn, .tms_deferred or .dynamic")
	}
	relas := make([]rela, table.Size/relaSize)
	if err := binary.Read(table.Open(), binary.LittleEndian, relas); err != nil {
		return 0, 0, err
	}
	var keep, other, late []rela
	for _, r := range relas {
		switch {
		case uint32(r.Info) != kind:
			other = append(other, r)
		case r.Offset-godata.Addr < godata.Size:
			late = append(late, r)
		default:
			keep = append(keep, r)
		}
	}
	if len(late) == 0 {
		return 0, 0, errors.New("nothing to defer; was it edited before?")
	}

	library, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, library.Close()) }()
	write := func(offset uint64, data any) {
		if err == nil {
			err = binary.Write(&at{library, int64(offset)}, binary.LittleEndian, data)
		}
	}
	write(table.Offset, append(append(append([]rela(nil), keep...), other...), late...))
	processed := uint64(len(keep) + len(other))
	write(note.Offset, [2]uint64{table.Addr + processed*relaSize, uint64(len(late))})

	entries := make([]struct{ Tag, Value uint64 }, dynamic.FileSize/16)
	if err := binary.Read(dynamic.Open(), binary.LittleEndian, entries); err != nil {
		return 0, 0, err
	}
	for i := range entries {
		switch elf.DynTag(entries[i].Tag) {
		case elf.DT_RELASZ:
			entries[i].Value = processed * relaSize
		case elf.DT_RELACOUNT:
			entries[i].Value = uint64(len(keep))
		}
	}
	write(dynamic.Offset, entries)
	return len(late), int(processed), err
}

// at writes to a file from an offset on.
type at struct {
	file   *os.File
	offset int64
}

func (a *at) Write(data []byte) (int, error) {
	n, err := a.file.WriteAt(data, a.offset)
	a.offset += int64(n)
	return n, err
}
