package doctor

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// image describes an ELF file.
type image struct {
	path    string // where the program sees it
	file    string // where to open it
	class   elf.Class
	machine elf.Machine

	loader  string // its dynamic loader; libraries and static programs have none
	program bool   // not a library
	soname  string
	filters []string // libraries that the loader takes in its place (DT_FILTER)

	definesMalloc bool     // exports a cudaMalloc
	definesCUDA   []string // exports of CUDA's functions
	importsCudart bool     // takes CUDA runtime functions from elsewhere
	importsDlopen bool
}

// openImage reads the ELF file that a program sees at path and this command sees at file.
func openImage(path, file string) (*image, error) {
	if info, err := os.Stat(file); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() { // opening a device can have effects
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	i := &image{path: path, file: file, class: f.Class, machine: f.Machine}
	for _, segment := range f.Progs {
		if segment.Type == elf.PT_INTERP && segment.Filesz < 4096 {
			text, err := io.ReadAll(segment.Open())
			if err != nil {
				return nil, err
			}
			i.loader = strings.TrimRight(string(text), "\x00")
		}
	}
	// A static position-independent program has no loader either: only a flag distinguishes it from a library.
	flags, _ := f.DynValue(elf.DT_FLAGS_1)
	pie := len(flags) > 0 && elf.DynFlag1(flags[0])&elf.DF_1_PIE != 0
	i.program = f.Type == elf.ET_EXEC || i.loader != "" || pie

	// Errors below mean that it has none, like a static program.
	if names, _ := f.DynString(elf.DT_SONAME); len(names) > 0 {
		i.soname = names[0]
	}
	i.filters = filters(f)
	i.readSymbols(f)
	return i, nil
}

// filters reads strings that elf.File.DynString does not know.
func filters(f *elf.File) (names []string) {
	dynamic := f.SectionByType(elf.SHT_DYNAMIC)
	if dynamic == nil || int(dynamic.Link) >= len(f.Sections) {
		return nil
	}
	offsets, _ := f.DynValue(elf.DT_FILTER)
	for _, offset := range offsets {
		text, err := f.Sections[dynamic.Link].Data()
		if err == nil && offset < uint64(len(text)) {
			name, _, _ := strings.Cut(string(text[offset:]), "\x00")
			names = append(names, name)
		}
	}
	return names
}

func (i *image) readSymbols(f *elf.File) {
	symbols, _ := f.DynamicSymbols()
	for _, s := range symbols {
		switch {
		case s.Section != elf.SHN_UNDEF:
			if cudaFunction.MatchString(s.Name) {
				i.definesCUDA = append(i.definesCUDA, s.Name)
			}
			i.definesMalloc = i.definesMalloc || s.Name == "cudaMalloc"
		case s.Name == "dlopen":
			i.importsDlopen = true
		case strings.HasPrefix(s.Name, "__cudaRegister") || runtimeFunction.MatchString(s.Name):
			i.importsCudart = true
		}
	}
}

var (
	runtimeFunction = regexp.MustCompile("^cuda[A-Z]") // such as cudaMalloc
	cudaFunction    = regexp.MustCompile("^cu(da)?[A-Z]")
)

func (i *image) base() string { return filepath.Base(i.path) }

func (i *image) hasName(library string) bool {
	return strings.HasPrefix(i.base(), library) || strings.HasPrefix(i.soname, library)
}

func (i *image) isCudart() bool { return i.hasName("libcudart.so") }

// architecture returns what a program and a preloaded library must share.
func (i *image) architecture() string {
	name := strings.ToLower(strings.TrimPrefix(i.machine.String(), "EM_"))
	switch {
	case i.class == elf.ELFCLASS32 && i.machine == elf.EM_X86_64:
		return "x32"
	case i.class == elf.ELFCLASS32:
		return name + " (32 bit)"
	}
	return name
}
