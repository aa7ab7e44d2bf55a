package doctor

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// process is a running program, from /proc.
type process struct {
	pid         int
	path        string // of the program
	environment environment
	mapped      []mapped // files
	library     *mapped  // libtms.so
	secure      bool     // it was started in secure-execution mode
}

// mapped is a file in a process's address space.
type mapped struct {
	path    string // where the process sees it
	deleted bool
}

func (p *process) proc(name string) string { return fmt.Sprintf("/proc/%d/%s", p.pid, name) }

// file returns where this command finds a file of the process, which may live in a container.
func (p *process) file(path string) string {
	if file := p.proc("root") + path; exists(file) {
		return file
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func openProcess(pid int) (*process, error) {
	p := &process{pid: pid}
	if !exists(p.proc("")) {
		return nil, fmt.Errorf("there is no process %d; give the number of a running one (in a container: as this "+
			"shell sees it)", pid)
	}
	path, noPath := os.Readlink(p.proc("exe"))
	variables, noVariables := os.ReadFile(p.proc("environ"))
	maps, noMaps := os.ReadFile(p.proc("maps"))
	switch err := cmp.Or(noPath, noVariables, noMaps); {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("process %d may not be examined: %w; run this as its user or as root", pid, err)
	case err != nil:
		return nil, fmt.Errorf("process %d cannot be examined: %w; is it a program that still runs, and no kernel "+
			"thread?", pid, err)
	}
	p.path = strings.TrimSuffix(path, " (deleted)")
	p.environment = parseEnvironment(strings.Split(string(variables), "\x00"))
	p.readMaps(string(maps))
	p.secure = secureFlag(p.proc("auxv"))
	return p, nil
}

func (p *process) readMaps(text string) {
	known := map[string]bool{}
	for _, line := range strings.Split(text, "\n") {
		// address permissions offset device inode path, which may have spaces
		fields := strings.SplitN(line, " ", 6)
		if len(fields) < 6 || fields[4] == "0" {
			continue
		}
		path := strings.TrimLeft(fields[5], " ")
		if known[path] || !strings.HasPrefix(path, "/") {
			continue
		}
		known[path] = true
		var m mapped
		m.path, m.deleted = strings.CutSuffix(path, " (deleted)")
		p.mapped = append(p.mapped, m)
		if isLibrary(m.path) && p.library == nil {
			p.library = &m
		}
	}
}

// secureFlag reads AT_SECURE from the auxiliary vector: pairs of machine words.
func secureFlag(path string) bool {
	const atSecure = 23
	vector, _ := os.ReadFile(path)
	for ; len(vector) >= 16; vector = vector[16:] {
		if binary.NativeEndian.Uint64(vector) == atSecure {
			return binary.NativeEndian.Uint64(vector[8:]) != 0
		}
	}
	return false
}

func (r *Report) examineProcess(p *process) {
	program := newProgram(p.path, p.pid)
	program.preload(p.environment, p.file("/etc/ld.so.preload"))
	r.Program = program
	main, err := openImage(p.path, p.proc("exe"))
	if err != nil {
		r.add(Error, "program", fmt.Sprintf("%s cannot be read: %v", p.path, err), "run this as its user or as root")
		return
	}
	program.Machine, program.Loader = main.architecture(), main.loader
	if !r.examineLoading(main) {
		return
	}
	for _, m := range p.mapped {
		if m.path == p.path {
			continue
		}
		if i, err := openImage(m.path, p.file(m.path)); err == nil { // data files are mapped too
			program.images = append(program.images, i)
		}
	}
	r.examineLibraryIn(p)
	r.examinePreloads(program.preloads(p.file))
	r.examineCudart(main)
}

// examineLibraryIn reports whether libtms.so is in the process, and if not, why.
func (r *Report) examineLibraryIn(p *process) {
	named := slices.IndexFunc(r.Program.Preloaded, func(entry string) bool { return isOurs(entry, p.file(entry)) })
	switch {
	case p.library != nil:
		r.Program.Libtms = p.library.path
		r.add(OK, "loaded", "libtms.so is in the process: "+p.library.path, "")
		if named < 0 {
			r.add(Warning, "preload", "LD_PRELOAD does not name libtms.so: if it was loaded later, with dlopen, "+
				"cudaMalloc does not reach it", r.preloadAdvice())
		}
	case p.secure:
		r.add(Error, "loaded", "libtms.so is not in the process, which runs in secure-execution mode (setuid, setgid, "+
			"capabilities): the loader ignores LD_PRELOAD=/path", "run a copy of the program without them")
	case named >= 0:
		r.add(Error, "loaded", "libtms.so is not in the process, though LD_PRELOAD names "+r.Program.Preloaded[named],
			"see what the program's loader (ld.so) said when it started; tms doctor PROGRAM under the same LD_PRELOAD "+
				"says it again")
	default:
		r.add(Error, "loaded", "libtms.so is not in the process, and a running process cannot take it",
			r.preloadAdvice())
	}
	if p.library != nil && p.library.deleted {
		r.add(Warning, "replaced", p.library.path+" was replaced or deleted since the process started, which goes on "+
			"with the old one; its children take what is there now", "restart the process")
	}
}
