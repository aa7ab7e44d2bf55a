package tree

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"tms/internal/snapshot"
)

// CRIU writes no file that a program has mapped: it maps the file again, by its path. A library of another version would
// then be at the addresses that the program has in its registers and tables. So a snapshot has an identity of each.

// mapped lists the files that processes have mapped and do not write to. A deleted file is CRIU's.
func mapped(processes []snapshot.Process) (list []snapshot.Mapped, err error) {
	seen := map[string]bool{}
	var owners []int
	for _, p := range processes {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID))
		if err != nil {
			return nil, fmt.Errorf("reading what process %d has mapped: %w", p.PID, err)
		}
		written := map[string]bool{}
		var paths []string
		for line := range strings.Lines(string(maps)) {
			fields := strings.Fields(line)
			at := strings.IndexByte(line, '/')
			if len(fields) < 6 || at < 0 || fields[4] == "0" {
				continue
			}
			path := strings.TrimSuffix(line[at:], "\n")
			paths = append(paths, path)
			written[path] = written[path] || strings.HasPrefix(fields[1][1:], "w") && strings.HasSuffix(fields[1], "s")
		}
		for _, path := range paths {
			if seen[path] || written[path] || strings.HasSuffix(path, " (deleted)") || strings.HasPrefix(path, "/dev/") ||
				strings.HasPrefix(path, "/memfd:") || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") {
				continue
			}
			seen[path] = true
			list = append(list, snapshot.Mapped{Path: path})
			owners = append(owners, p.PID)
		}
	}
	err = together(len(list), func(i int) error {
		one, err := identify(fmt.Sprintf("/proc/%d/root%s", owners[i], list[i].Path))
		if err != nil {
			return fmt.Errorf("process %d has %s mapped, which cannot be read: %w", owners[i], list[i].Path, err)
		}
		list[i].Size, list[i].ID = one.Size, one.ID
		return nil
	})
	slices.SortFunc(list, func(a, b snapshot.Mapped) int { return strings.Compare(a.Path, b.Path) })
	return list, err
}

// together does something for the numbers below n, as many at once as there are processors, and returns the first error.
func together(n int, do func(i int) error) error {
	var all errgroup.Group
	all.SetLimit(runtime.NumCPU())
	for i := range n {
		all.Go(func() error { return do(i) })
	}
	return all.Wait()
}

// Of a file without a build ID that is larger than this, parts are hashed: as many as parts, of partSize.
const (
	wholly   = 64 << 20
	parts    = 64
	partSize = 64 << 10
)

// identify returns the size and the identity of a file: its linker's build ID, or else a hash.
func identify(path string) (m snapshot.Mapped, err error) {
	file, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return m, fmt.Errorf("it is no ordinary file (%w)", err)
	}
	m.Size = info.Size()
	if id := buildID(file); id != "" {
		m.ID = "build-id:" + id
		return m, nil
	}
	hash := sha256.New()
	if m.Size <= wholly {
		_, err = io.Copy(hash, file)
		m.ID = "sha256:" + hex.EncodeToString(hash.Sum(nil))
		return m, err
	}
	for i := range int64(parts) {
		at := (m.Size - partSize) * i / (parts - 1)
		if _, err = io.Copy(hash, io.NewSectionReader(file, at, partSize)); err != nil {
			return m, err
		}
	}
	m.ID = "sha256-of-parts:" + hex.EncodeToString(hash.Sum(nil))
	return m, nil
}

// buildID returns the build ID of an ELF file, or "".
func buildID(file *os.File) string {
	image, err := elf.NewFile(file)
	if err != nil {
		return ""
	}
	for _, section := range image.Sections {
		if section.Name != ".note.gnu.build-id" || section.Size > 1024 {
			continue
		}
		// Three words, "GNU" with its zero, and the ID.
		if note, err := section.Data(); err == nil && len(note) > 16 {
			return hex.EncodeToString(note[16:])
		}
	}
	return ""
}

// lackedFiles says which of the files that a snapshot needs are missing here, or others.
func lackedFiles(needed []snapshot.Mapped) error {
	words := make([]string, len(needed))
	_ = together(len(needed), func(i int) error {
		need := needed[i]
		here, err := identify(need.Path)
		switch {
		case os.IsNotExist(err):
			words[i] = need.Path + " is missing"
		case err != nil:
			words[i] = fmt.Sprintf("%s cannot be read (%v)", need.Path, err)
		case here.Size != need.Size || here.ID != need.ID:
			words[i] = need.Path + " is another one than at the snapshot"
		}
		return nil
	})
	words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
	if len(words) == 0 {
		return nil
	}
	const most = 8
	more := ""
	if len(words) > most {
		more = fmt.Sprintf("; and %d more", len(words)-most)
		words = words[:most]
	}
	return fmt.Errorf("the program has these files mapped, and needs them as they were: %s%s. Put them back, or take a new "+
		"snapshot", strings.Join(words, "; "), more)
}

// caches are folders in which libraries keep what they have compiled, by the variable that names the folder, and where it
// is otherwise below the home directory.
var caches = []struct{ variable, home string }{
	{"TRITON_CACHE_DIR", ".triton/cache"},
	{"TORCHINDUCTOR_CACHE_DIR", ""}, // else /tmp/torchinductor_USER
	{"TORCH_EXTENSIONS_DIR", ".cache/torch_extensions"},
	{"CUDA_CACHE_PATH", ".nv/ComputeCache"},
	{"VLLM_CACHE_ROOT", ".cache/vllm"},
	{"FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer"},
}

// cachesOf lists the folders of that kind that the processes' environments name, and that are there. A program works
// without, and compiles again.
func cachesOf(processes []snapshot.Process) (list []string) {
	for _, p := range processes {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		environment := map[string]string{}
		for entry := range strings.SplitSeq(string(text), "\x00") {
			name, value, _ := strings.Cut(entry, "=")
			environment[name] = value
		}
		folders := []string{"/tmp/torchinductor_" + environment["USER"]}
		for _, cache := range caches {
			if named := environment[cache.variable]; named != "" {
				folders = append(folders, named)
			} else if home := environment["HOME"]; home != "" && cache.home != "" {
				folders = append(folders, filepath.Join(home, cache.home))
			}
		}
		for _, folder := range folders {
			info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", p.PID, folder))
			if err == nil && info.IsDir() && !slices.Contains(list, folder) {
				list = append(list, folder)
			}
		}
	}
	slices.Sort(list)
	return list
}
