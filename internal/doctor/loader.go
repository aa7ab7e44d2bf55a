package doctor

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
)

// loader finds the libraries of a program where glibc's ld.so would: see "dynamic linker" in ld.so(8).
// It leaves out glibc-hwcaps subfolders, which hold other builds of the same libraries.
type loader struct {
	main  *image
	paths []string // LD_LIBRARY_PATH
	cache map[string][]string
}

func newLoader(main *image, env environment) *loader {
	l := &loader{main: main, cache: readCache("/etc/ld.so.cache")}
	if paths := env["LD_LIBRARY_PATH"]; paths != "" {
		l.paths = strings.Split(strings.ReplaceAll(paths, ";", ":"), ":") // an empty one is "."
	}
	return l
}

// loaded is a library and the one that asked for it, whose DT_RPATH counts too.
type loaded struct {
	*image
	by *loaded
}

// closure is what the loader would load for the program, breadth first as it does, and the names
// that it would not find.
func (l *loader) closure() (images []*image, missing []string) {
	queue := []*loaded{{image: l.main}}
	known := map[string]bool{} // names asked for, sonames and paths: each is loaded once
	for n := 0; n < len(queue); n++ {
		for _, name := range queue[n].needed {
			if known[name] {
				continue
			}
			known[name] = true
			found := l.find(name, queue[n])
			if found == nil {
				missing = append(missing, name)
				continue
			}
			again := known[found.path] && found.path != name || known[found.soname] && found.soname != name
			known[found.path] = true
			if found.soname != "" {
				known[found.soname] = true
			}
			if !again {
				images = append(images, found)
				queue = append(queue, &loaded{found, queue[n]})
			}
		}
	}
	return images, missing
}

// find is the first file of that name, of the program's architecture, in the order that ld.so(8) gives.
func (l *loader) find(name string, by *loaded) *image {
	if strings.Contains(name, "/") {
		return l.try(l.expand(name, by.image))
	}
	var folders []string
	add := func(paths []string, of *image) {
		for _, path := range paths {
			folders = append(folders, l.expand(path, of))
		}
	}
	if len(by.runpath) == 0 {
		for from := by; from != nil; from = from.by {
			if len(from.runpath) == 0 {
				add(from.rpath, from.image)
			}
		}
		if by.image != l.main && len(l.main.runpath) == 0 {
			add(l.main.rpath, l.main)
		}
	}
	add(l.paths, l.main)
	add(by.runpath, by.image)
	for _, folder := range folders {
		if folder == "" {
			folder = "."
		}
		if found := l.try(filepath.Join(folder, name)); found != nil {
			return found
		}
	}
	for _, path := range l.cache[name] {
		if found := l.try(path); found != nil {
			return found
		}
	}
	for _, folder := range l.standardFolders() {
		if found := l.try(filepath.Join(folder, name)); found != nil {
			return found
		}
	}
	return nil
}

// try skips, as ld.so does, files of another architecture.
func (l *loader) try(path string) *image {
	found, err := openImage(path, path)
	if err != nil || found.class != l.main.class || found.machine != l.main.machine {
		return nil
	}
	return found
}

func (l *loader) triple() string { return l.main.architecture() + "-linux-gnu" }

func (l *loader) standardFolders() []string {
	return []string{"/lib/" + l.triple(), "/usr/lib/" + l.triple(), "/lib64", "/usr/lib64", "/lib", "/usr/lib"}
}

// expand replaces $ORIGIN, $LIB and $PLATFORM. What $LIB is depends on the distribution.
func (l *loader) expand(path string, of *image) string {
	if !strings.Contains(path, "$") {
		return path
	}
	origin := of.path
	if of == l.main { // the kernel's view of the program: links resolved
		if real, err := filepath.EvalSymlinks(of.path); err == nil {
			origin = real
		}
	}
	lib := "lib64"
	if _, err := os.Stat("/lib/" + l.triple()); err == nil {
		lib = "lib/" + l.triple()
	}
	for name, value := range map[string]string{
		"ORIGIN": filepath.Dir(origin), "LIB": lib, "PLATFORM": l.main.architecture(),
	} {
		path = strings.ReplaceAll(strings.ReplaceAll(path, "${"+name+"}", value), "$"+name, value)
	}
	return path
}

// readCache reads ld.so.cache: names, and the paths each stands for. A file that it does not
// understand is as good as none: the standard folders remain.
func readCache(path string) map[string][]string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	// glibc 2.2 to 2.31 may put a table of the old format in front.
	const magic = "glibc-ld.so.cache1.1"
	start := strings.Index(string(data), magic)
	const header, entry = 48, 24
	if start < 0 || len(data) < start+header {
		return nil
	}
	data = data[start:]
	text := func(offset uint32) string {
		if uint64(offset) >= uint64(len(data)) {
			return ""
		}
		value, _, _ := strings.Cut(string(data[offset:min(len(data), int(offset)+4096)]), "\x00")
		return value
	}
	cache := map[string][]string{}
	count := binary.NativeEndian.Uint32(data[len(magic):])
	for n := uint64(0); n < uint64(count) && header+(n+1)*entry <= uint64(len(data)); n++ {
		// flags, name, path, OS version: 4 bytes each; hardware capabilities: 8
		fields := data[header+n*entry:]
		name := text(binary.NativeEndian.Uint32(fields[4:]))
		cache[name] = append(cache[name], text(binary.NativeEndian.Uint32(fields[8:])))
	}
	return cache
}
