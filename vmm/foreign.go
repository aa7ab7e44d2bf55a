package vmm

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// foreign is memory that a program makes and maps itself, with the driver's functions for virtual memory,
// inside a region. It is a segment of its tag while it is mapped; its extent is its own, made as the
// program asked for it. The program knows it by a number of ours, for a resume puts another handle behind
// it. Its addresses lie outside the arenas, in reservations that stay the program's.
type foreign struct {
	number     cuda.Handle
	size       uint64 // of the memory; the mapping may be shorter
	prop       cuda.AllocationProp
	references int               // of the number; a mapping keeps the memory without any
	mapped     bool              // as the program sees it: also while paused
	access     []cuda.AccessDesc // of the mapping, one for each location
	lent       bool              // others may hold the memory itself: it cannot be replaced
}

// foreigners is what the engine knows of foreign memory.
type foreigners struct {
	made   uint64
	known  map[cuda.Handle]*segment
	mapped []*segment // by address
	late   []*segment // to be ended: the driver has refused to release the memory
}

// numberPrefix stands at the top of our numbers: driver handles are addresses or small numbers.
const (
	numberPrefix = 0x746d73
	numberShift  = 40
)

// ErrNotOurs: nothing of a region is concerned; the driver is to be called.
var ErrNotOurs = errors.New("no memory of a region")

// MemCreate is cuMemCreate in a region: memory as prop says, under a number of ours. r.Size is in bytes.
// Errors: ErrMargin, *cuda.Error. (cuMemCreate)
func (e *Engine) MemCreate(r Request, prop cuda.AllocationProp) (cuda.Handle, error) {
	e.mu.Lock()
	d, err := e.device(r.Device)
	e.mu.Unlock()
	if err != nil {
		return 0, err
	}
	s := &segment{
		device: d, size: r.Size, foreign: &foreign{size: r.Size, prop: prop, references: 1},
		policy: policy{r.Backup, r.Incremental && r.Backup == BackupHost, r.Target},
	}
	s.extent = newExtent(d, s)
	create := func() error { return e.allow(d, r, s.extent.create) }
	err = create()
	if errors.Is(err, cuda.OutOfMemory) && !r.Capturing && e.FreeDeferred()+e.waitOrdered() > 0 {
		err = create()
	}
	if err != nil {
		return 0, fmt.Errorf("creating %d bytes on device %d: %w", r.Size, r.Device, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.tag = d.tag(r.Tag)
	if s.incremental {
		e.loadHasher(d)
	}
	e.foreign.made++
	s.foreign.number = numberPrefix<<numberShift | cuda.Handle(e.foreign.made)
	e.foreign.known[s.foreign.number] = s
	return s.foreign.number, nil
}

// MemRelease is cuMemRelease. Memory that is mapped stays until it is unmapped.
// Errors: ErrNotOurs, *cuda.Error. (cuMemRelease)
func (e *Engine) MemRelease(number cuda.Handle) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.numbered(number)
	if err != nil {
		return err
	}
	s.foreign.references--
	if err = e.bury(s); err != nil {
		s.foreign.references++
	}
	return err
}

// MemMap is cuMemMap of size bytes. Paused memory stays paused: it comes back at the new address. A
// driver's own handle is refused where paused memory is, and is the driver's business elsewhere.
// Errors: ErrNotOurs, cuda.InvalidValue, cuda.NotSupported, *cuda.Error. (cuMemMap)
func (e *Engine) MemMap(address uintptr, size, offset uint64, number cuda.Handle, flags uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.numbered(number)
	switch {
	case e.overlapping(address, size) != nil:
		return fmt.Errorf("memory of a region is mapped at %#x: %w", address, cuda.InvalidValue)
	case err != nil:
		return err
	case offset != 0 || flags != 0:
		return fmt.Errorf("an offset into a handle, or flags: %w", cuda.NotSupported)
	case s.foreign.mapped:
		return fmt.Errorf("a second mapping of one handle made in a region: %w", cuda.NotSupported)
	case s.state == paused && size != s.size:
		return fmt.Errorf("%d bytes of %d that are paused: %w", size, s.size, cuda.NotSupported)
	}
	x := s.extent
	if x != nil && s.state == active {
		if err := e.engage([]*segment{s}, func() error {
			return s.device.driver.MemMap(address, size, x.handle)
		}); err != nil {
			return err
		}
		x.mapped = true
	}
	s.address, s.size, s.foreign.mapped = address, size, true
	if x != nil {
		x.address, x.size = address, size
	}
	at, _ := slices.BinarySearchFunc(e.foreign.mapped, address, compareAddress)
	e.foreign.mapped = slices.Insert(e.foreign.mapped, at, s)
	s.tag.add(s)
	return nil
}

// MemUnmap is cuMemUnmap, of whole mappings. Paused ones have only to be forgotten. Where the driver refuses
// to release memory that nobody refers to any more, FreeDeferred does it later.
// Errors: ErrNotOurs, cuda.InvalidValue, *cuda.Error. (cuMemUnmap, cuMemRelease)
func (e *Engine) MemUnmap(address uintptr, size uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.eachPart(address, size, (*cuda.Driver).MemUnmap, e.unmapped)
}

// unmapped notes that a mapping is no more. The caller holds e.mu.
func (e *Engine) unmapped(s *segment) {
	if x := s.extent; x != nil {
		x.mapped, x.open = false, false
	}
	at, _ := slices.BinarySearchFunc(e.foreign.mapped, s.address, compareAddress)
	e.foreign.mapped = slices.Delete(e.foreign.mapped, at, at+1)
	s.tag.remove(s)
	s.foreign.mapped, s.foreign.access = false, nil
	if s.state == active {
		s.discard() // the memory itself has what it holds
	}
	if e.bury(s) != nil {
		e.foreign.late = append(e.foreign.late, s)
	}
}

// buryLate ends what could not be ended before, and returns how many could.
func (e *Engine) buryLate() (done int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	late := e.foreign.late
	e.foreign.late = nil
	for _, s := range late {
		if e.bury(s) == nil {
			done++
		} else {
			e.foreign.late = append(e.foreign.late, s)
		}
	}
	return done
}

// MemSetAccess is cuMemSetAccess, of whole mappings; paused ones get the access when they come back.
// Errors: ErrNotOurs, cuda.InvalidValue, *cuda.Error. (cuMemSetAccess)
func (e *Engine) MemSetAccess(address uintptr, size uint64, descs []cuda.AccessDesc) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	set := func(d *cuda.Driver, address uintptr, size uint64) error {
		return d.MemSetAccessOf(address, size, descs)
	}
	return e.eachPart(address, size, set, func(s *segment) {
		s.foreign.allow(descs)
		if x := s.extent; x != nil && x.mapped {
			x.open = s.accessible()
		}
	})
}

// MemAddressFree refuses to let go of addresses where memory of a region, paused perhaps, is mapped.
// Errors: cuda.InvalidValue, else ErrNotOurs.
func (e *Engine) MemAddressFree(address uintptr, size uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.overlapping(address, size); s != nil {
		return fmt.Errorf("memory of a region is mapped at %#x: %w", s.address, cuda.InvalidValue)
	}
	return ErrNotOurs
}

// MemRetain is cuMemRetainAllocationHandle: the number of the memory mapped around an address, once more.
// Errors: ErrNotOurs.
func (e *Engine) MemRetain(address uintptr) (cuda.Handle, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.overlapping(address, 1)
	if s == nil {
		return 0, ErrNotOurs
	}
	s.foreign.references++
	return s.foreign.number, nil
}

// MemUse calls use with the driver's handle of a number, while no pause comes. lend: what use does lets
// others hold the memory itself, so from then on pauses leave it as it is: memory made anew could not
// be given to them. Errors: ErrNotOurs, cuda.NotSupported while it is paused, that of use.
func (e *Engine) MemUse(number cuda.Handle, lend bool, use func(cuda.Handle) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.numbered(number)
	if err != nil {
		return err
	}
	if s.state == paused {
		return fmt.Errorf("the memory is paused; resume tag %q first: %w", s.tag.name, cuda.NotSupported)
	}
	err = e.engage([]*segment{s}, func() error { return use(s.extent.handle) })
	if err == nil && lend {
		s.foreign.lent = true
	}
	return err
}

// stays tells that pause and resume leave foreign memory as it is: its device has no access, so contents
// cannot be moved, or others hold the memory.
func (s *segment) stays() bool { return s.foreign != nil && (s.foreign.lent || !s.accessible()) }

// lose is what a reset of the device does: the memory goes. The program may still unmap and release it.
func (e *Engine) lose(s *segment) {
	for !s.settled() {
		e.settled.Wait()
	}
	if x := s.extent; x == nil || e.engage([]*segment{s}, x.unmake) == nil {
		s.extent = nil
	}
	s.state = paused
	s.discard()
}

// numbered finds settled memory by a number that the program may use. The caller holds e.mu.
func (e *Engine) numbered(number cuda.Handle) (*segment, error) {
	if number>>numberShift != numberPrefix {
		return nil, ErrNotOurs
	}
	for {
		s := e.foreign.known[number]
		if s == nil || s.foreign.references == 0 {
			return nil, fmt.Errorf("handle %#x is none, or was released: %w", uint64(number), cuda.InvalidValue)
		}
		if s.settled() {
			return s, nil
		}
		e.settled.Wait()
	}
}

// settled tells that no transition or other call works on foreign memory.
func (s *segment) settled() bool { return !s.busy && (s.extent == nil || !s.extent.busy) }

// overlapping returns the first mapping of foreign memory that reaches into a range, nil if none does.
func (e *Engine) overlapping(address uintptr, size uint64) *segment {
	list := e.foreign.mapped
	at, found := slices.BinarySearchFunc(list, address, compareAddress)
	if !found && at > 0 && uint64(address-list[at-1].address) < list[at-1].size {
		return list[at-1]
	}
	if at < len(list) && uint64(list[at].address-address) < size {
		return list[at]
	}
	return nil
}

func compareAddress(s *segment, address uintptr) int {
	switch {
	case s.address < address:
		return -1
	case s.address > address:
		return 1
	}
	return 0
}

// eachPart goes through a range in which there is foreign memory: it has the driver do what concerns
// mappings that the driver has, as many at a time as lie between paused ones, and then calls note for the
// foreign ones of them; for those that are paused it only calls note. An error leaves the parts before it
// done. The caller holds e.mu, which is let go for driver calls.
func (e *Engine) eachPart(address uintptr, size uint64, do func(*cuda.Driver, uintptr, uint64) error, note func(*segment)) error {
	if e.overlapping(address, size) == nil {
		return ErrNotOurs
	}
	end := address + uintptr(size)
	for _, s := range []*segment{e.overlapping(address, 1), e.overlapping(end-1, 1)} {
		if s != nil && (s.address < address || s.address+uintptr(s.size) > end) {
			return fmt.Errorf("part of the mapping at %#x: %w", s.address, cuda.InvalidValue)
		}
	}
	for address < end {
		upTo, segments := e.part(address, end)
		if segments == nil || segments[0].onDevice() {
			if err := e.engage(segments, func() error {
				return do(e.driver, address, uint64(upTo-address))
			}); err != nil {
				return err
			}
		}
		for _, s := range segments {
			note(s)
		}
		address = upTo
	}
	return nil
}

// part returns where the next part of a range ends, and the foreign memory in it, settled.
func (e *Engine) part(address, end uintptr) (uintptr, []*segment) {
again:
	var segments []*segment
	for at := address; at < end; {
		s := e.overlapping(at, uint64(end-at))
		switch {
		case s == nil:
			return end, segments
		case !s.settled():
			e.settled.Wait()
			goto again
		case s.onDevice():
			segments = append(segments, s)
		case s.address > address:
			return s.address, segments
		default:
			return s.address + uintptr(s.size), []*segment{s}
		}
		at = s.address + uintptr(s.size)
	}
	return end, segments
}

// onDevice tells that the driver has the mapping.
func (s *segment) onDevice() bool { return s.extent != nil && s.extent.mapped }

// engage makes a driver call that concerns segments, while nobody else works on them. The caller holds
// e.mu, which is let go meanwhile.
func (e *Engine) engage(segments []*segment, call func() error) error {
	mark := func(busy bool) {
		for _, s := range segments {
			if s.extent != nil {
				s.extent.busy = busy
			}
		}
	}
	mark(true)
	e.mu.Unlock()
	err := call()
	e.mu.Lock()
	mark(false)
	e.settled.Broadcast()
	return err
}

// bury ends memory that is neither referred to nor mapped. The caller holds e.mu.
func (e *Engine) bury(s *segment) error {
	if s.foreign.references > 0 || s.foreign.mapped {
		return nil
	}
	if x := s.extent; x != nil {
		if err := e.engage([]*segment{s}, x.release); err != nil {
			return err
		}
	}
	s.discard()
	delete(e.foreign.known, s.foreign.number)
	return nil
}

func (s *segment) discard() {
	if s.contents != nil {
		s.contents.Discard()
	}
	s.kept = kept{}
}

// allow notes access that has been given, or is to be given when the memory comes back.
func (f *foreign) allow(descs []cuda.AccessDesc) {
	for _, desc := range descs {
		at := slices.IndexFunc(f.access, func(a cuda.AccessDesc) bool { return a.Location == desc.Location })
		if at < 0 {
			f.access = append(f.access, desc)
		} else {
			f.access[at] = desc
		}
	}
}

// accessible tells that its device can read and write the memory, so that contents can be moved.
func (s *segment) accessible() bool {
	own := cuda.Location{Kind: cuda.LocationDevice, ID: int32(s.device.ordinal)}
	return slices.Contains(s.foreign.access, cuda.AccessDesc{Location: own, Flags: cuda.AccessReadWrite})
}
