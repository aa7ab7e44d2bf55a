package doctor

import (
	"bytes"
	"debug/elf"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Cudart describes the program's CUDA runtime.
type Cudart struct {
	// Shared, static, both or none; with none it may still load one at run time
	Linkage   string          `json:"linkage"`
	Libraries []cudartLibrary `json:"libraries"`
}

// cudartLibrary is one shared CUDA runtime.
type cudartLibrary struct {
	Path  string `json:"path"`
	Major int    `json:"major"` // 0 if the name does not say
}

// examineCudart finds the program's CUDA runtime, and reports whether libtms.so can see calls of it.
func (r *Report) examineCudart(main *image) {
	p := r.Program
	majors := map[int]bool{}
	var inside []string
	for n, i := range append([]*image{main}, p.images...) {
		if i.isCudart() {
			library := cudartLibrary{i.path, majorOf(i)}
			p.Cudart.Libraries = append(p.Cudart.Libraries, library)
			majors[library.Major] = true
			r.examineMajor(library)
		} else if n > 0 && i.staticCudart(16<<20).sign != "" {
			inside = append(inside, i.base())
		}
	}
	static := evidence{}
	if !main.isCudart() {
		static = main.staticCudart(1 << 40)
	}
	shared := len(p.Cudart.Libraries) > 0
	switch {
	case static.sign != "" && shared && !static.wins:
		p.Cudart.Linkage = "both"
		r.add(Warning, "cudart", fmt.Sprintf("%s seems to have a CUDA runtime linked statically besides a shared one "+
			"(%s): its own allocations cannot be seen", main.path, static.sign), staticAdvice)
	case static.sign != "":
		p.Cudart.Linkage = "static"
		r.add(Error, "cudart", fmt.Sprintf("%s seems to have the CUDA runtime linked statically: %s", main.path,
			static.sign), staticAdvice)
	case shared:
		p.Cudart.Linkage = "shared"
		r.add(OK, "cudart", "it uses a shared libcudart", "")
	case p.PID != 0:
		r.add(Note, "cudart", "the process has not loaded a libcudart",
			"look again once it has used CUDA; if it has, it calls the driver directly, which cannot be paused")
	case p.late:
		r.add(Note, "cudart", "it depends on no libcudart but can load one at run time, as Python does; that is "+
			"interposed, except under RTLD_DEEPBIND, which cannot be seen from here",
			"examine the process when it has started: tms doctor --pid")
	default:
		r.add(Note, "cudart", "it depends on no libcudart and loads nothing at run time: there is nothing to "+
			"interpose", "")
	}
	if len(majors) > 1 {
		r.add(Warning, "cudart-versions", "it has more than one major version of libcudart: calls of all of them go "+
			"to the first that libtms.so finds", "make the program and its libraries use one version")
	}
	if len(inside) > 0 {
		r.add(Note, "cudart-inside", "what libraries with a CUDA runtime inside allocate themselves cannot be paused: "+
			strings.Join(inside, ", "), "")
	}
}

const staticAdvice = "link it with nvcc -cudart shared (CMake: CUDA_RUNTIME_LIBRARY Shared)"

// majorOf reads the number after libcudart.so.; the soname is surer than the file's name.
func majorOf(i *image) int {
	for _, name := range []string{i.soname, i.base()} {
		if number, ok := strings.CutPrefix(name, "libcudart.so."); ok {
			number, _, _ = strings.Cut(number, ".")
			if major, err := strconv.Atoi(number); err == nil {
				return major
			}
		}
	}
	return 0
}

func (r *Report) examineMajor(library cudartLibrary) {
	if library.Major > r.Driver.major && r.Driver.major != 0 {
		r.add(Error, "cudart-version", fmt.Sprintf("%s needs a driver for CUDA %d; this one is for CUDA %s",
			library.Path, library.Major, r.Driver.CUDAVersion),
			"install a newer driver, or a build of the program for this one")
	}
	if library.Major != 0 && library.Major < 12 {
		r.add(Warning, "cudart-version", fmt.Sprintf("%s is CUDA %d; libtms.so is made for 12 and 13", library.Path,
			library.Major), "use a build of the program for CUDA 12 or 13")
	}
}

// evidence says why a file seems to contain the CUDA runtime.
type evidence struct {
	sign string // "": it seems to contain none
	wins bool   // over every other runtime in the process
}

// Two texts of every libcudart, 12 and 13, that no other code should contain together: the name of its shared memory,
// and its error for an old driver.
var runtimeTexts = [][]byte{
	[]byte("/cudart.shm."),
	[]byte("CUDA driver version is insufficient for CUDA runtime version"),
}

// staticCudart looks for a CUDA runtime inside the file. It searches up to limit bytes of each read-only section.
func (i *image) staticCudart(limit uint64) evidence {
	f, err := elf.Open(i.file)
	if err != nil {
		return evidence{}
	}
	defer f.Close()
	if i.definesMalloc {
		if i.program {
			return evidence{"it exports a cudaMalloc, which comes before any preloaded one", true}
		}
		return evidence{} // a library's comes after the preloaded ones
	}
	symbols, _ := f.Symbols()
	for _, s := range symbols {
		if s.Name == "cudaMalloc" && elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF {
			return evidence{"cudaMalloc is one of its own functions", false}
		}
	}
	if i.importsCudart {
		return evidence{} // stripped: a runtime inside would not be the one that it calls
	}
	// nvcc's code registers this section with a CUDA runtime; it imports none.
	if f.Section(".nvFatBinSegment") != nil {
		return evidence{"it has GPU code made by nvcc and imports no CUDA runtime", false}
	}
	if hasRuntimeTexts(f, limit) {
		return evidence{"it contains texts of the CUDA runtime and imports none", false}
	}
	return evidence{}
}

// hasRuntimeTexts reports whether one read-only data section has all of the texts.
func hasRuntimeTexts(f *elf.File, limit uint64) bool {
	for _, section := range f.Sections {
		readOnly := section.Type == elf.SHT_PROGBITS && section.Flags&elf.SHF_ALLOC != 0 &&
			section.Flags&(elf.SHF_WRITE|elf.SHF_EXECINSTR) == 0
		if !readOnly || section.Size > limit {
			continue
		}
		data, err := section.Data()
		missing := func(text []byte) bool { return !bytes.Contains(data, text) }
		if err == nil && !slices.ContainsFunc(runtimeTexts, missing) {
			return true
		}
	}
	return false
}
