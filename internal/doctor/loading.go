package doctor

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// examineLoading looks at what the kernel and the loader do with the file itself. It returns false if nothing else
// matters then.
func (r *Report) examineLoading(main *image) bool {
	switch {
	case main.loader == "" && main.program:
		r.add(Error, "static", main.path+" is statically linked: no dynamic loader runs, and LD_PRELOAD does nothing",
			"link it dynamically (a Go program: use cgo, CGO_ENABLED=1)")
		return false
	case main.architecture() != r.libraryArchitecture():
		r.add(Error, "architecture", fmt.Sprintf("%s is for %s, libtms.so is for %s", main.path, main.architecture(),
			r.libraryArchitecture()), "use a program and a libtms.so of the same architecture")
		return false
	case !main.program:
		r.add(Note, "program", main.path+" is a library: examined as a part of the program that will load it", "")
		return true
	}
	base := filepath.Base(main.loader)
	if !strings.HasPrefix(base, "ld-linux") && !strings.HasPrefix(base, "ld64.so") {
		r.add(Error, "libc", "its loader is "+main.loader+"; libtms.so and CUDA need glibc",
			"use a build of the program for glibc (in containers: an image that is not Alpine)")
		return false
	}
	if _, err := os.Stat(main.loader); err != nil && r.Program.PID == 0 {
		r.add(Error, "libc", fmt.Sprintf("its loader %s is not on this machine", main.loader),
			"run this where the program runs, in its container for instance")
		return false
	}
	return true
}

// What ld.so writes about a program that it traces and does not start, as for ldd(1): one line for each file, in the
// order of symbol lookup, and complaints. With --list it would stop at the first missing library.
var (
	listed  = regexp.MustCompile(`(?m)^\t(?:.* => )?(.*) \(0x[0-9a-f]+\)$`)
	notHere = regexp.MustCompile(`(?m)^\t(.*) => not found$`)
	ignored = regexp.MustCompile(`object '(.*)' from (\S+) cannot be preloaded \((.*)\)`)
	lacking = regexp.MustCompile(`version .(\S+)' not found \(required by (.*)\)`)
)

// askLoader asks the program's loader what it would load, with libtms.so preloaded, and which libraries it would miss.
func (r *Report) askLoader(main *image, env environment) (images []*image, missing []string) {
	preloads := env.preloads()
	if r.Library != nil && !strings.ContainsAny(r.Library.Path, " :") {
		preloads = append(preloads, r.Library.Path)
	}
	program, err := filepath.EvalSymlinks(main.path) // whose folder $ORIGIN is
	if err != nil {
		program = main.path
	}
	loader := main.loader
	if loader == "" { // a library: this command's own
		if self, err := openImage("/proc/self/exe", "/proc/self/exe"); err == nil {
			loader = self.loader
		}
	}
	command := exec.Command(loader, program)
	command.Env = []string{"LD_TRACE_LOADED_OBJECTS=1", "LD_PRELOAD=" + strings.Join(preloads, ":"),
		"LD_LIBRARY_PATH=" + env["LD_LIBRARY_PATH"]}
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	err = command.Run()

	for _, found := range listed.FindAllStringSubmatch(out.String(), -1) {
		if i, err := openImage(found[1], found[1]); err == nil { // the kernel's is no file
			images = append(images, i)
		}
	}
	for _, name := range notHere.FindAllStringSubmatch(out.String(), -1) {
		missing = append(missing, name[1])
	}
	for _, entry := range ignored.FindAllStringSubmatch(complaints.String(), -1) {
		r.add(Warning, "preload",
			fmt.Sprintf("the loader does not preload %s, which %s names: %s", entry[1], entry[2], entry[3]),
			"correct the path: the loader goes on without it")
	}
	var versions []string
	for _, version := range lacking.FindAllStringSubmatch(complaints.String(), -1) {
		if r.Library != nil && version[2] == r.Library.Path {
			versions = append(versions, version[1])
		}
	}
	switch {
	case len(versions) > 0: // a preloaded library that needs a newer glibc than there is stops the program
		r.add(Error, "glibc",
			fmt.Sprintf("libtms.so needs %s, which this machine's glibc does not have: the program would not start",
				strings.Join(versions, ", ")), "build libtms.so on the oldest system it is to run on")
	case err != nil:
		said := strings.ReplaceAll(strings.TrimSpace(complaints.String()), "\n", "; ")
		r.add(Warning, "libraries", fmt.Sprintf("what %s loads is not known: %v: %s", main.path, err, said),
			"start the program: its loader says the same")
	}
	return images, missing
}
