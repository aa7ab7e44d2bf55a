package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Version is the format of a manifest: a reader refuses a later one, and reads all earlier ones. Fields may be added
// without another version, if a reader that ignores them misses nothing. Version 2 has Pages, version 3 Packs, and version
// 4 Sets. A snapshot without sets has version 3.
const Version = 4

const withoutSets = 3

const (
	manifestName = "snapshot.json"
	sumName      = "snapshot.sha256"
)

// Manifest says what a snapshot has, and what it needs.
type Manifest struct {
	Version   int       `json:"version"`
	Tms       string    `json:"tms"` // the version that has written it
	Made      time.Time `json:"made"`
	Processes []Process `json:"processes"`
	// Job: the first process is not the leader of its session.
	Job bool `json:"job,omitempty"`
	// Streams has standard streams of the first process that came from outside of the tree, by CRIU's names: a restore
	// gives the process its own stream of that number.
	Streams map[string]int `json:"streams,omitempty"`
	// Connected: TCP connections between the processes are in CRIU's images.
	Connected bool `json:"connected,omitempty"`
	// Shared are files in /dev/shm that the processes have open or mapped; their contents are in the snapshot's folder.
	Shared []Shared `json:"shared,omitempty"`
	// Sets is memory that no process owns, and that the processes had open.
	Sets  []Set `json:"sets,omitempty"`
	Needs Needs `json:"needs"`
	// Pages are CRIU's files with the private memory of processes. They are not in the snapshot's folder: their blocks are
	// in DIR/blocks.
	Pages []File `json:"pages,omitempty"`
	// Packs are the files in DIR/blocks/packs that have blocks of Pages.
	Packs []string `json:"packs,omitempty"`
	// Files are those in the snapshot's folder, with their hashes; their blocks are not in DIR/blocks. Commit lists
	// them.
	Files []File `json:"files"`
}

// Process is a process of a snapshot.
type Process struct {
	PID      int      `json:"pid"`
	Parent   int      `json:"parent,omitempty"` // of the snapshot, too; 0 for the first
	Command  []string `json:"command"`
	Steered  bool     `json:"steered,omitempty"` // by tms
	Sockets  string   `json:"sockets,omitempty"` // directory of its socket
	User     int      `json:"user,omitempty"`
	Contents []Held   `json:"contents"`
	// Parts are numbers of Sets, of which the process's socket thread held the descriptors.
	Parts []uint64 `json:"parts,omitempty"`
}

// Set is a version of a set (package sets). Sets with the same File are the same set.
type Set struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	Device  string `json:"device"` // its UUID
	Tensors int    `json:"tensors,omitempty"`
	// Nameless: another version had the name, or none.
	Nameless bool `json:"nameless,omitempty"`
	// Numbers are the set's, and then those of the chunks.
	Numbers []uint64  `json:"numbers"`
	File    Content   `json:"file"` // the manifest of its tensors, and their hashes
	Chunks  []Content `json:"chunks"`
}

// Bytes returns how many bytes a set has, with zeros.
func (s *Set) Bytes() (bytes int64) {
	for _, chunk := range s.Chunks {
		bytes += chunk.Size
	}
	return bytes
}

// Bytes returns how many bytes of contents the process had, with zeros.
func (p *Process) Bytes() (bytes int64) {
	for _, held := range p.Contents {
		bytes += held.Size
	}
	return bytes
}

// Held is a file of contents, by the number under which the process's socket thread held it.
type Held struct {
	Number uint64 `json:"number"`
	Content
}

// Shared is a file in /dev/shm. Two with the same Path are one file with two names.
type Shared struct {
	Name  string `json:"name"`
	Path  string `json:"path"` // below the snapshot's folder
	Mode  uint32 `json:"mode"`
	User  int    `json:"user"`
	Group int    `json:"group"`
}

// Needs is what must be the same where a snapshot is restored.
type Needs struct {
	Driver  string `json:"driver,omitempty"`
	GPUs    []GPU  `json:"gpus,omitempty"` // in the driver's order
	Kernel  string `json:"kernel,omitempty"`
	CRIU    string `json:"criu,omitempty"`
	Machine string `json:"machine,omitempty"` // amd64, arm64
	// Mapped are files that the processes have mapped, such as libraries. CRIU maps them again, and so they must be the
	// same.
	Mapped []Mapped `json:"mapped,omitempty"`
	// Caches are folders of what libraries have compiled. Without them a program compiles again.
	Caches []string `json:"caches,omitempty"`
}

// Mapped is a file that a process has mapped.
type Mapped struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	// ID is "build-id:" with what the linker has noted, or "sha256:" with a hash, or "sha256-of-parts:" with a hash of 64
	// parts of a file that is larger than 64 MiB.
	ID string `json:"id"`
}

// GPU is a device that a snapshot's processes use.
type GPU struct {
	Model  string `json:"model"`
	UUID   string `json:"uuid"`
	Memory uint64 `json:"memory"` // bytes
}

// File is a file in a snapshot's folder, or one that a restore puts together for CRIU.
type File struct {
	Path string `json:"path"` // below the folder
	Content
}

// contents lists all contents whose blocks are in DIR/blocks.
func (m *Manifest) contents() (list []Content) {
	for _, p := range m.Processes {
		for _, held := range p.Contents {
			list = append(list, held.Content)
		}
	}
	for _, set := range m.Sets {
		list = append(append(list, set.File), set.Chunks...)
	}
	for _, file := range m.Pages {
		list = append(list, file.Content)
	}
	return list
}

// write puts the manifest into a folder, with its hash.
func (m *Manifest) write(folder string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	sum := sha256.Sum256(text)
	line := fmt.Sprintf("%s  %s\n", hex.EncodeToString(sum[:]), manifestName)
	if err := writeFile(filepath.Join(folder, manifestName), text); err != nil {
		return err
	}
	return writeFile(filepath.Join(folder, sumName), []byte(line))
}

// readManifest reads what write has written. Errors: *Damage.
func (d *Directory) readManifest(name string) (*Manifest, error) {
	path := filepath.Join(d.path, name, manifestName)
	damaged := func(what string) error { return &Damage{Snapshot: name, Path: path, What: what} }
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, damaged(reason(err))
	}
	line, err := os.ReadFile(filepath.Join(d.path, name, sumName))
	if err != nil {
		return nil, damaged(fmt.Sprintf("its hash cannot be read: %s", reason(err)))
	}
	sum := sha256.Sum256(text)
	if want, _, _ := strings.Cut(string(line), " "); want != hex.EncodeToString(sum[:]) {
		return nil, damaged("it is not what was written (" + sumName + " has another hash)")
	}
	m := new(Manifest)
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(m); err != nil {
		return nil, damaged(err.Error())
	}
	if m.Version > Version {
		return nil, damaged(fmt.Sprintf("a later tms (%s) has written it, in version %d of the format, and this tms reads "+
			"version %d: use that tms", m.Tms, m.Version, Version))
	}
	for _, c := range m.contents() {
		if !c.valid(len(m.Packs)) {
			return nil, damaged("the list of blocks has another length than the contents")
		}
	}
	for _, set := range m.Sets {
		if len(set.Numbers) != 1+len(set.Chunks) {
			return nil, damaged(fmt.Sprintf("the entry of the set %q is wrong", set.Name))
		}
	}
	for _, name := range m.Packs {
		if !goodPack(name) {
			return nil, damaged(fmt.Sprintf("the entry of %q is wrong", name))
		}
	}
	for _, f := range slices.Concat(m.Files, m.Pages) {
		if !f.valid(len(m.Packs)) || !filepath.IsLocal(f.Path) {
			return nil, damaged(fmt.Sprintf("the entry of %q is wrong", f.Path))
		}
	}
	return m, nil
}
