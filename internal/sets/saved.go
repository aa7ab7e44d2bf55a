package sets

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/machine/process"
	"tms/internal/sets/checksum"
	"tms/vmm/cuda"
)

// A snapshot has the contents of sets. Its restore uses the set that the keeper has already, or makes it.

// Part is what a descriptor of a set stands for: memory of a chunk, or with no bytes the manifest.
type Part struct {
	*os.File
	Bytes uint64
}

// EachInMemory copies chunks of one device, one after another, to files in host memory, which it closes.
func EachInMemory(device string, chunks []Part, use func(chunk int, file *os.File) error) error {
	var m mover
	if err := m.open(device); err != nil {
		return err
	}
	defer m.close()
	return m.work(func(w worker) error {
		for i, chunk := range chunks {
			err := inHostMemory(chunk.Bytes, func() error {
				made, err := m.make(control.ToHost, chunk.Bytes)
				if err != nil {
					return err
				}
				defer made.close()
				source := end{files: []*os.File{chunk.File}, each: chunk.Bytes}
				err = m.reach(w, source, func(from memory) error { return w.copy(made.files[0], from, chunk.Bytes) })
				if err == nil {
					err = use(i, made.files[0])
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// inHostMemory does what takes bytes of host memory for that time.
func inHostMemory(bytes uint64, do func() error) error {
	promise, free := ledger.Promise(bytes)
	if promise == nil {
		return cuda.Refuse(cuda.OperatingSystem, "a chunk of it needs %s of host memory, and %s are available",
			readable.Bytes(bytes), readable.Bytes(free))
	}
	defer promise.End()
	return do()
}

// HasName reports whether a set has its name, by the file of its manifest. (Keeper.replace)
func HasName(manifest *os.File) bool {
	var found unix.Stat_t
	return unix.Fstat(int(manifest.Fd()), &found) == nil && found.Mode&0o777 != 0
}

// PartOf returns the keeper's descriptor of a chunk, or by the number of the set that of the manifest.
func PartOf(set control.KeptSet, number uint64) (Part, error) {
	if number == set.ID {
		s, manifest, err := use(set)
		if err == nil {
			err = letGo(s)
		}
		return Part{File: manifest}, err
	}
	reply, descriptor, err := Ask(control.LendRequest{Op: control.Lend, Memory: number}, -1)
	if err == nil && descriptor < 0 {
		err = errors.New("there is no room for a descriptor (ulimit -n)")
	}
	if err != nil {
		return Part{}, err
	}
	return Part{os.NewFile(uintptr(descriptor), "a chunk"), reply.Bytes}, nil
}

// use opens a set by its number.
func use(of control.KeptSet) (control.KeptSet, *os.File, error) {
	reply, manifest, err := Ask(control.SetRequest{Op: control.Open, Set: of.ID, Name: of.Name, Confirm: true}, -1)
	if err == nil && reply.Sets[0].ID != of.ID {
		_ = unix.Close(manifest)
		err = errors.Join(cuda.Refuse(cuda.NotSupported, "the keeper is of an older tms, which opens sets by their names alone: "+
			"end that keeper once no process needs its sets"), letGo(reply.Sets[0]))
	}
	if err != nil {
		return of, nil, err
	}
	return reply.Sets[0], os.NewFile(uintptr(manifest), "a manifest"), nil
}

func letGo(s control.KeptSet) error {
	_, _, err := Ask(control.SetRequest{Op: control.Close, Set: s.ID}, -1)
	return err
}

// Saved is a set of a snapshot.
type Saved struct {
	Name     string
	Version  uint64
	Device   string // on which it is to be
	Nameless bool   // it had lost the name
	Tensors  int
	File     []byte   // the manifest, with hashes of the contents: it is what makes two sets the same
	Chunks   []uint64 // their bytes
	// Contents returns a chunk's contents in a file, which its caller closes.
	Contents func(chunk int) (*os.File, error)
	// Step is called before each step, which its error ends.
	Step func(name string) error
}

// Use opens the set at the keeper, and makes it if the keeper does not have it. The caller is a user until Done. Where
// another process is making the same set, Use waits for that. Errors: why it cannot be made; *cuda.Error.
func (s Saved) Use(ctx context.Context) (control.KeptSet, error) {
	var makers process.Watch
	for ctx.Err() == nil {
		reply, _, err := Ask(control.SetRequest{Op: control.List}, -1)
		if err != nil {
			return control.KeptSet{}, err
		}
		set, found, err := s.find(reply.Sets)
		if err != nil || found {
			return set, err
		}
		i := slices.IndexFunc(reply.Sets, func(other control.KeptSet) bool { return other.ID == s.number() })
		if i < 0 {
			if set, err = s.make(); cuda.Code(err) != int(cuda.SymbolNotFound) {
				return set, err
			} // another process has begun it, or the keeper is another one
		} else if maker := reply.Sets[i].Maker; makers.Exhausted(maker) {
			return set, cuda.Refuse(cuda.Timeout, "%w", process.Held("set "+s.Name, maker))
		}
		time.Sleep(lockEvery)
	}
	return control.KeptSet{}, context.Cause(ctx)
}

// Done ends a use.
func Done(set control.KeptSet) error { return letGo(set) }

// number is that under which the set is made: two processes that make the same set for one device find each other by it.
func (s Saved) number() uint64 {
	sum := sha256.Sum256(slices.Concat([]byte(s.Name+"\x00"+s.Device+"\x00"), s.File))
	return max(1, binary.LittleEndian.Uint64(sum[:]))
}

// find opens the set if the keeper has it, and brings it to its device first.
func (s Saved) find(all []control.KeptSet) (control.KeptSet, bool, error) {
	for _, other := range all {
		sizes := func(chunk control.KeptChunk, bytes uint64) int { return cmp.Compare(chunk.Bytes, bytes) }
		if other.Sealed == 0 || other.Name != s.Name || other.Device != s.Device ||
			slices.CompareFunc(other.Chunks, s.Chunks, sizes) != 0 || other.Place != Device && other.Replaced {
			continue
		}
		set, manifest, err := use(other)
		if cuda.Code(err) == int(cuda.SymbolNotFound) { // its last user has just gone
			continue
		} else if err != nil {
			return set, false, err
		}
		file, err := checksum.Read(int(manifest.Fd()))
		_ = manifest.Close()
		same := err == nil && bytes.Equal(file.All, s.File)
		if same && set.Place == Device {
			return set, true, nil
		}
		if err := letGo(set); err != nil {
			return set, false, err
		}
		if same {
			if _, err = Move(s.Name, Device, os.TempDir()); err != nil {
				return set, false, err
			}
			reply, _, err := Ask(control.SetRequest{Op: control.List}, -1)
			if err != nil {
				return set, false, err
			}
			return s.find(reply.Sets)
		}
	}
	return control.KeptSet{}, false, nil
}

// make makes the set. The keeper has its number from the first chunk on, and forgets what a process that ends has begun.
func (s Saved) make() (set control.KeptSet, err error) {
	set = control.KeptSet{ID: s.number(), Name: s.Name, Device: s.Device}
	var m mover
	if err = m.open(s.Device); err != nil {
		return set, err
	}
	defer m.close()
	begun := false
	defer func() {
		if err != nil && begun {
			_ = letGo(set)
		}
	}()
	err = m.work(func(w worker) error {
		for i, bytes := range s.Chunks {
			made, err := m.make(Device, bytes)
			if errors.Is(err, cuda.OutOfMemory) {
				err = fmt.Errorf("device %s has no room for %s of the set %q: %w", s.Device, readable.Bytes(bytes), s.Name, err)
			}
			if err != nil {
				return err
			}
			_, _, err = Ask(control.SetRequest{Op: control.Put, Set: set.ID, Name: s.Name, Device: s.Device, Before: i,
				Chunk: descriptors.Number(), Bytes: bytes}, int(made.files[0].Fd()))
			if err == nil {
				begun = true
				err = s.fill(m, w, made, i)
			}
			if made.close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = s.Step("seal a set")
	}
	if err != nil {
		return set, err
	}
	return s.seal(set)
}

// fill gives a chunk its contents.
func (s Saved) fill(m mover, w worker, made end, chunk int) error {
	if err := s.Step("fill a set"); err != nil {
		return err
	}
	return inHostMemory(s.Chunks[chunk], func() error {
		contents, err := s.Contents(chunk)
		if err != nil {
			return err
		}
		defer contents.Close()
		return m.reach(w, made, func(to memory) error { return w.copy(to, contents, s.Chunks[chunk]) })
	})
}

func (s Saved) seal(set control.KeptSet) (control.KeptSet, error) {
	descriptor, err := unix.MemfdCreate("tms-manifest", unix.MFD_CLOEXEC)
	if err != nil {
		return set, cuda.Refuse(cuda.OperatingSystem, "no host memory for the manifest: %w", err)
	}
	file := os.NewFile(uintptr(descriptor), "a manifest")
	defer file.Close()
	if _, err = file.Write(s.File); err != nil {
		return set, err
	}
	reply, _, err := Ask(control.SetRequest{Op: control.Seal, Set: set.ID, Before: len(s.Chunks), Tensors: s.Tensors,
		Restored: max(1, s.Version), Nameless: s.Nameless, Confirm: true}, descriptor)
	if err != nil {
		return set, err
	}
	return reply.Sets[0], nil
}
