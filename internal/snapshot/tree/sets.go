package tree

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
	"tms/internal/machine/checkpoint"
	"tms/internal/sets"
	"tms/internal/snapshot"
)

// Sets of memory that no process owns: a snapshot has the contents of those that its processes have open, and a restore
// finds them at the keeper or has it hold them again, so that all restored programs on a GPU have them once.

// openSet is a set that a process has open. Its parts are the manifest and the chunks: the process's own descriptors,
// and the keeper's, if the process has opened the set and not attached it.
type openSet struct {
	control.KeptSet
	parts []sets.Part
	lent  []sets.Part // those of the keeper
}

func (s *openSet) close() {
	for _, part := range s.lent {
		_ = part.Close()
	}
}

// openSets returns each set that parked processes have open, once: the keeper may have a set no longer when the program
// goes on. It refuses sets of another user's keeper.
func openSets(t *Tree, g *group.Group) (all []*openSet, err error) {
	done := map[uint64]bool{}
	for _, m := range g.Members {
		at := slices.IndexFunc(t.Processes, func(p snapshot.Process) bool { return p.PID == m.PID })
		if user := os.Geteuid(); len(m.Kept) > 0 && at >= 0 && t.Processes[at].User != user {
			return all, fmt.Errorf("process %d has attached the set %q, which user %d's keeper holds, and a restore would find "+
				"that of user %d: have the program free these tensors for the snapshot", m.PID, m.Kept[0].Name,
				t.Processes[at].User, user)
		}
		for _, kept := range m.Kept {
			if done[kept.ID] {
				continue
			}
			done[kept.ID] = true
			set := &openSet{KeptSet: kept}
			all = append(all, set)
			for _, each := range append([]control.KeptChunk{{ID: kept.ID}}, kept.Chunks...) {
				part := sets.Part{File: m.Parts[each.ID], Bytes: each.Bytes}
				if part.File == nil {
					if part, err = sets.PartOf(kept, each.ID); err != nil {
						return all, fmt.Errorf("the set %q: %w", kept.Name, err)
					}
					set.lent = append(set.lent, part)
				}
				set.parts = append(set.parts, part)
			}
		}
	}
	return all, nil
}

// saveSets puts sets into blocks.
func saveSets(ctx context.Context, writer *snapshot.Writer, all []*openSet) (saved []snapshot.Set, err error) {
	for _, open := range all {
		if err = step("sets"); err != nil {
			return nil, err
		}
		set, err := open.save(ctx, writer)
		if err != nil {
			return nil, fmt.Errorf("the set %q: %w", open.Name, err)
		}
		saved = append(saved, set)
	}
	return saved, nil
}

func (s *openSet) save(ctx context.Context, writer *snapshot.Writer) (snapshot.Set, error) {
	manifest, chunks := s.parts[0], s.parts[1:]
	set := snapshot.Set{Name: s.Name, Version: s.Version, Device: s.Device, Tensors: s.Tensors, Numbers: []uint64{s.ID},
		Nameless: !sets.HasName(manifest.File), Chunks: make([]snapshot.Content, len(chunks))}
	for _, chunk := range s.Chunks {
		set.Numbers = append(set.Numbers, chunk.ID)
	}
	info, err := manifest.Stat()
	if err == nil {
		set.File, err = writer.Add(ctx, manifest.File, info.Size())
	}
	if err != nil {
		return set, err
	}
	return set, sets.EachInMemory(s.Device, chunks, func(chunk int, file *os.File) (err error) {
		set.Chunks[chunk], err = writer.Add(ctx, file, int64(chunks[chunk].Bytes))
		return err
	})
}

// placed has the sets of a restore, on each device on which a copy wants them.
type placed struct {
	of    *snapshot.Snapshot
	mu    sync.Mutex // held while one is made: all copies of this command wait for it
	made  map[string]*placedSet
	begun bool // a keeper was started, if none ran
}

// placedSet is a set of the snapshot on a device, of which this command is a user.
type placedSet struct {
	*snapshot.Set
	is    control.KeptSet
	parts map[uint64]sets.Part // by its new numbers
}

// on returns the sets for a copy whose GPUs these pairs say.
func (p *placed) on(ctx context.Context, pairs []checkpoint.Pair) (all []*placedSet, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.of.Manifest.Sets {
		set := &p.of.Manifest.Sets[i]
		device := set.Device
		if at := slices.IndexFunc(pairs, func(pair checkpoint.Pair) bool { return pair.Old == device }); at >= 0 {
			device = pairs[at].New
		}
		key := fmt.Sprint(i, " ", device)
		one := p.made[key]
		if one == nil {
			if one, err = p.place(ctx, set, device); err != nil {
				return nil, fmt.Errorf("the set %q: %w", set.Name, err)
			}
			if p.made == nil {
				p.made = map[string]*placedSet{}
			}
			p.made[key] = one
		}
		all = append(all, one)
	}
	return all, nil
}

func (p *placed) place(ctx context.Context, set *snapshot.Set, device string) (*placedSet, error) {
	if !p.begun {
		self, err := os.Executable()
		if err == nil {
			err = sets.StartKeeper(self, "keeper", "--idle")
		}
		if err != nil {
			return nil, err
		}
		p.begun = true
	}
	read := func(content snapshot.Content) (*os.File, error) {
		file, err := snapshot.NewMemory(content.Size)
		if err == nil {
			if err = p.of.Copy(ctx, content, file); err != nil {
				_ = file.Close()
			}
		}
		return file, err
	}
	file, err := read(set.File)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	manifest, err := io.ReadAll(io.NewSectionReader(file, 0, set.File.Size))
	if err != nil {
		return nil, err
	}
	saved := sets.Saved{Name: set.Name, Version: set.Version, Device: device, Nameless: set.Nameless, Tensors: set.Tensors,
		File: manifest, Contents: func(chunk int) (*os.File, error) { return read(set.Chunks[chunk]) }, Step: step}
	for _, chunk := range set.Chunks {
		saved.Chunks = append(saved.Chunks, uint64(chunk.Size))
	}
	is, err := saved.Use(ctx)
	if err != nil {
		return nil, err
	}
	one := &placedSet{Set: set, is: is, parts: map[uint64]sets.Part{}}
	for _, number := range one.numbers() {
		part, err := sets.PartOf(is, number)
		if err != nil {
			one.close()
			return nil, err
		}
		one.parts[number] = part
	}
	return one, nil
}

// numbers lists those that the parts have at the keeper, in the order of the snapshot's.
func (s *placedSet) numbers() []uint64 {
	numbers := []uint64{s.is.ID}
	for _, chunk := range s.is.Chunks {
		numbers = append(numbers, chunk.ID)
	}
	return numbers
}

// close ends this command's use. The set stays while it has the name or a program uses it.
func (s *placedSet) close() {
	for _, part := range s.parts {
		_ = part.Close()
	}
	_ = sets.Done(s.is)
}

func (p *placed) close() {
	for _, set := range p.made {
		set.close()
	}
}

// giveSets has a restored process adopt its sets, and gives it what it held of them.
func giveSets(ctx context.Context, connection *client.Conn, p snapshot.Process, all []*placedSet) error {
	if len(p.Parts) == 0 {
		return nil
	}
	if err := step("adopt"); err != nil {
		return err
	}
	var request control.SteerRequest
	request.Op = control.Adopt
	for _, set := range all {
		request.Sets = append(request.Sets, control.Adopted{Was: set.Numbers, Set: set.is})
	}
	if err := group.Ask(ctx, connection, request); err != nil {
		return fmt.Errorf("it cannot have its sets: %w", err)
	}
	for _, set := range all {
		for i, number := range set.numbers() {
			if part := set.parts[number]; slices.Contains(p.Parts, set.Numbers[i]) {
				if err := connection.Put(ctx, number, part.Bytes, part.File); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
