package main

import (
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// A process that is restored from a snapshot has the sets of the snapshot, by numbers that the keeper may not know, and
// perhaps for another device. tms restore finds these sets at the keeper, or makes them, and the process adopts them.

// setsTime is how long a snapshot, or what comes after it, waits for an operation on a set.
const setsTime = 5 * time.Second

// lockSets waits until no operation on a set is in progress, and keeps it so until unlock is called.
func (p *Process) lockSets() (all []*set, unlock func(), err error) {
	p.sets.Lock()
	for _, s := range p.sets.open {
		all = append(all, s)
	}
	p.sets.Unlock()
	until, locked := time.Now().Add(setsTime), 0
	unlock = func() {
		for _, s := range all[:locked] {
			s.mu.Unlock()
		}
	}
	for _, s := range all {
		if !poll(until, s.mu.TryLock) {
			unlock()
			return nil, nil, cuda.Refuse(cuda.NotReady, "a thread has been attaching, moving or publishing the set %q for %v: try "+
				"again when it has done so", s.Name, setsTime)
		}
		locked++
	}
	return all, unlock, nil
}

// setsStay returns why a snapshot cannot have the sets of the process: a set that this process is still writing belongs to
// no other, and is gone when the process ends.
func (t *task) setsStay() error {
	p := t.process
	all, unlock, err := p.lockSets()
	if err != nil {
		return err
	}
	defer unlock()
	for _, s := range all {
		if p.isOpen(s) && !t.Request.SaveSets {
			return cuda.Refuse(cuda.NotSupported, "the program has the set %q open, which the command does not save: it is of an "+
				"older tms than the program", s.Name)
		}
		if s.Sealed == 0 && len(s.Chunks) > 0 && p.isOpen(s) {
			return cuda.Refuse(cuda.NotSupported, "the program is writing the set %q, which a snapshot cannot have before it is "+
				"complete: try again then", s.Name)
		}
		for _, v := range s.versions() {
			if v.Sealed != 0 && !v.file.Hashed() && p.isOpen(s) {
				return cuda.Refuse(cuda.NotSupported, "the set %q was published without hashes, which need CUDA 12.0, so a restore "+
					"could take another set for it: have the program close the set for the snapshot", s.Name)
			}
		}
	}
	return nil
}

// isOpen reports whether a set was not closed since it was listed.
func (p *Process) isOpen(s *set) bool {
	p.sets.Lock()
	defer p.sets.Unlock()
	for _, open := range p.sets.open {
		if open == s {
			return true
		}
	}
	return false
}

// versions lists what the process has of a set: the version that is open, and those before it and coming.
func (s *set) versions() (all []*version) {
	for _, v := range []*version{&s.version, s.before, s.coming} {
		if v != nil {
			all = append(all, v)
		}
	}
	return all
}

// adopt takes the sets of the keeper in the place of those of the snapshot, which have the same contents. The keeper then
// counts this process as a user of each, as often as it has the set open.
func (p *Process) adopt(sets []control.Adopted) (err error) {
	all, unlock, err := p.lockSets()
	if err != nil {
		return err
	}
	defer unlock()
	now := map[uint64]control.Adopted{}
	numbers := map[uint64]uint64{}
	for _, adopted := range sets {
		now[adopted.Was[0]] = adopted
		for was, is := range adopted.Numbers() {
			numbers[was] = is
		}
	}
	var opened []control.KeptSet
	defer func() {
		for _, s := range opened {
			if err != nil {
				p.letGo(s)
			}
		}
	}()
	var found []*version
	for _, s := range all {
		if !p.isOpen(s) {
			continue
		}
		for _, v := range s.versions() {
			adopted, has := now[v.ID]
			if !has || len(adopted.Set.Chunks) != len(v.Chunks) {
				return cuda.Refuse(cuda.InvalidValue, "the snapshot does not have version %d of the set %q", v.Version, v.Name)
			}
			_, manifest, err := p.askKeeper(control.SetRequest{Op: control.Open, Set: adopted.Set.ID, Name: v.Name,
				Confirm: true}, -1)
			if err != nil {
				return err
			}
			_ = unix.Close(manifest) // it comes with the contents
			opened, found = append(opened, adopted.Set), append(found, v)
		}
	}
	p.sets.Lock()
	for _, v := range found {
		v.KeptSet = now[v.ID].Set
	}
	p.sets.Unlock()
	p.sets.parts.renumber(numbers)
	if e := p.engine.Load(); e != nil {
		e.Shared().Renumber(numbers)
	}
	return nil
}
