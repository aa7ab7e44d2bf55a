package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Program is the program or process that was examined.
type Program struct {
	Path      string   `json:"path"`
	PID       int      `json:"pid"`    // 0: no process, only a file
	Script    string   `json:"script"` // the named script, if Path is its interpreter
	Machine   string   `json:"machine"`
	Loader    string   `json:"loader"` // "" if it has none: LD_PRELOAD does nothing
	Cudart    Cudart   `json:"cudart"`
	Preloaded []string `json:"preloaded"` // the entries of its LD_PRELOAD and of /etc/ld.so.preload
	Libtms    string   `json:"libtms"`    // the libtms.so in the process

	images []*image
	late   bool // it can load libraries at run time
}

func (p *Program) String() string {
	text := p.Path
	if p.Script != "" {
		text += ", which runs " + p.Script
	}
	if p.PID != 0 {
		text += fmt.Sprintf(", process %d", p.PID)
	}
	return text
}

// has reports whether the program has a library whose name begins with library.
func (p *Program) has(library string) bool {
	begins := func(i *image) bool { return strings.HasPrefix(i.base(), library) }
	return p != nil && slices.ContainsFunc(p.images, begins)
}

// python reports whether the program is a Python that has not started yet, which may load anything.
func (p *Program) python() bool {
	return p != nil && p.PID == 0 && strings.HasPrefix(filepath.Base(p.Path), "python")
}

func newProgram(path string, pid int) *Program {
	return &Program{Path: path, PID: pid, Preloaded: []string{},
		Cudart: Cudart{Linkage: "none", Libraries: []cudartLibrary{}}}
}

// preload notes the entries of its LD_PRELOAD and of a file.
func (p *Program) preload(env environment, file string) {
	p.Preloaded = append(append(p.Preloaded, env.preloads()...), preloadFile(file)...)
}

// openProgram finds the program, and the interpreter if it is a script.
func openProgram(name string) (*Program, *image, error) {
	path, err := lookUp(name)
	if err != nil {
		return nil, nil, err
	}
	p := newProgram(path, 0)
	for range 5 { // as deep as the kernel follows
		interpreter, err := interpreterOf(p.Path)
		if err != nil {
			return nil, nil, err
		}
		if interpreter == "" {
			break
		}
		p.Script, p.Path = cmp.Or(p.Script, p.Path), interpreter
	}
	main, err := openImage(p.Path, p.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is no program (neither ELF nor a script with #!): give the interpreter that "+
			"runs it, python3 for instance", p.Path)
	}
	p.Machine, p.Loader = main.architecture(), main.loader
	return p, main, nil
}

func lookUp(name string) (string, error) {
	path := name
	info, err := os.Stat(path)
	if !strings.Contains(name, "/") {
		if found, lookErr := exec.LookPath(name); lookErr == nil || errors.Is(lookErr, exec.ErrDot) {
			path = found
			info, err = os.Stat(path)
		} else if err != nil {
			return "", fmt.Errorf("there is no program %s in PATH; give its path", name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w; give the path of a program", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file; give the path of a program", path)
	}
	return filepath.Abs(path)
}

// interpreterOf returns the interpreter in a script's first line, or "" if the file is no script. It looks through env,
// which many scripts use.
func interpreterOf(path string) (interpreter string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	beginning, err := io.ReadAll(io.LimitReader(file, 256)) // as much as the kernel reads
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w", path, err)
	}
	line, _, _ := strings.Cut(string(beginning), "\n")
	line, isScript := strings.CutPrefix(line, "#!")
	if !isScript {
		return "", nil
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", fmt.Errorf("%s has #! but no interpreter behind it", path)
	}
	name := words[0]
	if filepath.Base(name) == "env" {
		for _, word := range words[1:] {
			if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
				name = word
				break
			}
		}
	}
	interpreter, err = lookUp(name)
	if err != nil {
		return "", fmt.Errorf("the interpreter of %s: %w", path, err)
	}
	return interpreter, nil
}

func (r *Report) examineProgram(main *image, env environment) {
	p := r.Program
	errorsBefore := r.errors()
	if !r.examineLoading(main) {
		return
	}

	p.preload(env, "/etc/ld.so.preload")
	var missing []string
	p.images, missing = r.askLoader(main, env)
	r.examinePreloads(p.preloads(func(path string) string { return path }))
	opens := func(i *image) bool { return i.importsDlopen && !i.isOurs() }
	p.late = main.importsDlopen || slices.ContainsFunc(p.images, opens)
	if r.examineMissing(missing) {
		r.examineCudart(main)
	}
	if main.program && r.errors() == errorsBefore {
		r.add(OK, "program", "libtms.so can be preloaded into it", r.preloadAdvice())
	}
}

// examineMissing returns false if a libcudart is among the missing libraries.
func (r *Report) examineMissing(missing []string) bool {
	runtime := slices.ContainsFunc(missing, func(name string) bool { return strings.HasPrefix(name, "libcudart.so") })
	severity, id := Warning, "libraries"
	if runtime {
		severity, id = Error, "cudart"
	}
	if len(missing) > 0 {
		r.add(severity, id, "the loader would not find "+strings.Join(missing, ", ")+", which it needs",
			"put the folders that have them into LD_LIBRARY_PATH, as when the program is started")
	}
	return !runtime
}
