package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	release "tms"
)

// Library is the libtms.so that the process has or would preload.
type Library struct {
	Path    string `json:"path"`
	Machine string `json:"machine"`
}

const libraryName = "libtms.so"

// isLibrary recognises it by name: other interposers have the same functions.
func isLibrary(path string) bool {
	return strings.HasPrefix(filepath.Base(path), libraryName)
}

// isOurs also recognises the names that clients of torch_memory_saver look for: files in whose place the loader takes
// libtms.so (scripts/wheel/alias.c).
func (i *image) isOurs() bool { return isLibrary(i.path) || i.standsFor(i.path) != "" }

// IsLibrary reports whether a file is libtms.so, under its own name or under one of those.
func IsLibrary(path string) bool { return isOurs(path, path) }

// isOurs reports the same of a file that a process sees at path and this command sees at file, if it can be read.
func isOurs(path, file string) bool {
	i, err := openImage(path, file)
	return isLibrary(path) || err == nil && i.isOurs()
}

// standsFor returns the libtms.so that the loader takes in place of this file at path, or "" if it takes this file.
func (i *image) standsFor(path string) string {
	for _, filter := range i.filters {
		if isLibrary(filter) && !isLibrary(path) {
			folder := filepath.Dir(path)
			return filepath.Clean(strings.NewReplacer("$ORIGIN", folder, "${ORIGIN}", folder).Replace(filter))
		}
	}
	return ""
}

// findLibrary looks for libtms.so in the process, in TMS_LIBRARY (as the Python package does), in this command's own
// LD_PRELOAD, and beside this command.
func (r *Report) findLibrary(p *process) error {
	if p != nil && p.library != nil {
		if !p.library.deleted {
			return r.openLibrary(p.library.path, p.file(p.library.path))
		}
		return nil // examineProcess reports it
	}
	env := parseEnvironment(os.Environ())
	if named := env["TMS_LIBRARY"]; named != "" {
		if err := r.openLibrary(named, named); err != nil {
			return fmt.Errorf("TMS_LIBRARY: %w", err)
		}
		return nil
	}
	places := slices.DeleteFunc(env.preloads(), func(entry string) bool { return !isOurs(entry, entry) })
	if self, err := os.Executable(); err == nil {
		places = append(places, release.LibraryPaths(self)...)
	}
	for _, place := range places {
		if exists(place) {
			return r.openLibrary(place, place)
		}
	}
	r.add(Warning, "library", "libtms.so was not found, so whether it fits the program is not known",
		"build it with scripts/build.sh; name it in TMS_LIBRARY")
	return nil
}

func (r *Report) openLibrary(path, file string) error {
	if info, err := os.Stat(file); err != nil || info.IsDir() {
		return fmt.Errorf("%s is no file; give the path of libtms.so (scripts/build.sh makes build/lib/libtms.so)",
			path)
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	found, err := openImage(path, file)
	if err != nil {
		r.add(Error, "library", fmt.Sprintf("%s cannot be used: %v", path, err), "build it again with scripts/build.sh")
		return nil
	}
	if real := found.standsFor(path); real != "" {
		return r.openLibrary(real, found.standsFor(file))
	}
	if found.program || !found.definesMalloc {
		r.add(Error, "library", path+" defines no cudaMalloc: it is not libtms.so", "give the path of libtms.so")
		return nil
	}
	r.Library = &Library{Path: path, Machine: found.architecture()}
	return nil
}

func (r *Report) libraryArchitecture() string {
	switch {
	case r.Library != nil:
		return r.Library.Machine
	case runtime.GOARCH == "arm64": // as this command, which is built together with libtms.so
		return "aarch64"
	}
	return "x86_64"
}

// preloadAdvice says how to start a program so that it has the library.
func (r *Report) preloadAdvice() string {
	path := "/path/to/" + libraryName
	if r.Library != nil {
		path = r.Library.Path
	}
	if strings.ContainsAny(path, " :") {
		return "copy libtms.so to a path without spaces and colons, which LD_PRELOAD cannot hold, and start the " +
			"program with LD_PRELOAD=PATH"
	}
	return "start it with tms run -- COMMAND, so that all of its memory can be paused; with LD_PRELOAD=" + path +
		" its regions can"
}
