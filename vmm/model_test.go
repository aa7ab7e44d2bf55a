package vmm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/vmm"
	"tms/vmm/cuda"
)

// program is bytes that are read as operations.
type program struct {
	bytes []byte
	at    int
}

func (p *program) next() int {
	if p.at >= len(p.bytes) {
		return 0
	}
	p.at++
	return int(p.bytes[p.at-1])
}

// model is a scene that plays a program and knows what should happen.
type model struct {
	*scene
	program
	retain, verify bool
	reserved       *extents
	serial         uint64
	operations     int
	other          *vmm.Engine // as if of another process, which opens memory of the first
	held           sync.Map    // numbers under which it has some of that
	had            [2]uint64   // what the program had of each device at the first resume
}

// The other engine's processes: there is only one.

func (m *model) Fetch(share vmm.Share, number uint64) (vmm.Export, error) {
	export, err := m.engine.Shared().Export(share.ID, vmm.Importer{Number: number})
	if err == nil {
		m.held.Store(number, true)
	}
	return export, err
}

func (m *model) Return(share vmm.Share, number uint64) error {
	m.engine.Shared().Returned(share.ID, 0, number)
	m.held.Delete(number) // perhaps one that it was not given
	return nil
}

func (m *model) Gone(vmm.Importer) bool { return false }

const modelMemory = 4 << 20 // a device's, when it is to be short

// play makes the operations of a program, checks each against what is expected, and frees everything at the end.
func (s *scene) play(bytes []byte, reserved *extents) {
	m := &model{scene: s, program: program{bytes: bytes, at: 1}, reserved: reserved}
	reserved.off.Store(false)
	reserved.serve(s.engine, &descriptors.Holder{})
	s.engine.Shareable(true)
	vmm.HostOf(s.engine).SetProcesses(m)
	if hasGate(bytes) {
		vmm.HostOf(s.engine).SetCompactor(stopped{s.engine})
	}
	m.other = vmm.NewOn(s.driver)
	vmm.HostOf(m.other).SetAnnounce(func(uintptr, uint64) error { s.arenas++; return nil })
	vmm.HostOf(m.other).SetProcesses(m)
	m.other.CheckInvariants(true)
	for m.at < len(m.bytes) && m.operations < 400 {
		m.operations++
		m.step()
		m.context, _ = m.driver.CtxGetCurrent()
	}
	s.faults.drop()
	m.transition("resume", "", resume)
	free := func(p *piece) error { return s.engine.Free(p.address, false) }
	for slices.ContainsFunc(m.all, func(p *piece) bool { return p.paused }) { // memory is short: with less it works
		m.free(0, free)
		m.transition("resume", "", resume)
	}
	m.look("at the end")
	for len(m.all) > 0 {
		m.free(0, free)
	}
	s.end()
}

func modelFaults(bytes []byte) *faults {
	f := &faults{}
	if short(bytes) {
		f.memory = modelMemory
	}
	return f
}

// short reports whether the devices have so little memory that allocations fail.
func short(bytes []byte) bool { return len(bytes) > 0 && bytes[0]%2 == 1 }

// hasGate reports whether the program has a gate, so that memory can be moved.
func hasGate(bytes []byte) bool { return len(bytes) > 0 && bytes[0]/2%2 == 1 }

func (f *faults) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = nil
}

// failSoon makes a call not far from now fail.
func (f *faults) failSoon(calls int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plan == nil {
		f.plan = map[int]error{}
	}
	f.plan[f.made+calls] = err
}

func (m *model) pick() *piece {
	if len(m.all) == 0 {
		return nil
	}
	return m.all[m.next()%len(m.all)]
}

func (m *model) step() {
	switch op := m.next() % 24; op {
	case 0, 1, 2, 3, 4, 5:
		m.malloc()
	case 6, 7, 8, 9, 10:
		if len(m.all) > 0 {
			m.free(m.next()%len(m.all), func(p *piece) error {
				if op == 10 {
					return m.engine.FreeAfter(p.address, 0)
				}
				return m.engine.Free(p.address, op == 9)
			})
		}
	case 11:
		if p := m.pick(); p != nil && !p.paused {
			m.serial++
			p.fill(m.serial)
		}
	case 12:
		m.copy(m.pick(), m.pick())
	case 13:
		m.transition("pause", "", pause)
	case 14:
		m.transition("resume", "", resume)
	case 15:
		m.transition("pause", m.tag(), pause)
	case 16:
		m.transition("discard", m.tag(), func(e *vmm.Engine, o vmm.Options) error {
			o.Discard = true
			return pause(e, o)
		})
	case 17, 18:
		m.transition("resume", m.tag(), resume)
	case 19:
		m.faults.failSoon(m.next()%64, []error{cuda.Unknown, cuda.OutOfMemory, cuda.InvalidValue, unix.EIO}[m.next()%4])
	case 20, 21:
		tag := m.tag()
		m.try("prepare", func() error { return m.engine.Prepare([]string{tag})() })
	case 22:
		switch m.next() % 11 {
		case 8, 9, 10:
			m.open(m.pick())
		case 6:
			m.move(vmm.BackupDisk)
		case 7:
			m.move(vmm.BackupHost)
		case 0:
			m.engine.Trim()
		case 1:
			m.engine.Drain()
		case 2:
			m.engine.FreeDeferred()
		case 3:
			m.try("grant", m.engine.Grant)
		case 4:
			m.try("stats", func() error { return m.addUp() })
		case 5:
			m.backupPointer(m.pick())
		}
	case 23:
		switch m.next() % 3 {
		case 0:
			m.retain = !m.retain
		case 1:
			m.verify = !m.verify
		case 2:
			m.reserved.off.Store(!m.reserved.off.Load())
		}
	}
	for len(m.warned) > 0 {
		if line := <-m.warned; strings.Contains(line, vmm.ErrInvariant.Error()) {
			m.fail("%s", line)
		}
	}
}

func (m *model) tag() string { return string(rune('a' + m.next()%3)) }

func (m *model) firedSoFar() int {
	_, fired := m.faults.count()
	return fired
}

// try makes an operation. It may fail if a call in it was made to fail, or for lack of memory.
func (m *model) try(name string, operation func() error) error {
	fired := m.firedSoFar()
	err := operation()
	if err == nil {
		return nil
	}
	m.last = err
	if errors.Is(err, vmm.ErrInvariant) ||
		m.firedSoFar() == fired && !(short(m.bytes) && errors.Is(err, cuda.OutOfMemory)) {
		m.fail("operation %d, %s", m.operations, name)
	}
	return err
}

func (m *model) malloc() {
	r := kinds[m.next()%len(kinds)]
	r.Device, r.Tag = m.next()%2, m.tag()
	scale := m.next()
	if r.Ordered = scale&4 != 0; scale&8 != 0 {
		r.Keep = 1 << 40
	}
	switch scale % 4 {
	case 0:
		r.Size = uint64(1 + m.next()*8)
	case 1:
		r.Size = uint64(1 + m.next()*256)
	default:
		r.Size = uint64(1+m.next()%8) * sceneGranularity
	}
	var address uintptr
	fired := m.firedSoFar()
	if m.try("malloc", func() (err error) { address, err = m.engine.Malloc(r); return err }) != nil {
		if m.firedSoFar() == fired {
			m.couldNot(r)
		}
		return
	}
	for _, p := range m.all {
		if address < p.address+uintptr(p.request.Size) && p.address < address+uintptr(r.Size) {
			m.fail("%#x overlaps %#x", address, p.address)
		}
	}
	if !readable(address) {
		m.fail("new memory at %#x cannot be read", address)
	}
	m.serial++
	for _, p := range m.all { // a small one may have brought back a granule that others share
		if small := r.Size < sceneGranularity && p.request.Size < sceneGranularity; small && p.paused &&
			p.request.Device == r.Device && p.request.Tag == r.Tag && !m.engine.PausedAt(p.address) {
			p.paused = false
			if p.lost {
				m.serial++
				p.fill(m.serial)
			}
		}
	}
	m.serial++
	p := &piece{address: address, request: r}
	p.fill(m.serial)
	m.all = append(m.all, p)
}

// couldNot checks that an allocation that failed would have failed in an engine without pauses, too. With a gate no
// slack may be left. Without one it may, up to a sixteenth of the device, or more if the program has never had so much
// and a quarter of the device beyond. The program itself has freed what it caches.
func (m *model) couldNot(r vmm.Request) {
	free, slack := m.sim.Stat(fmt.Sprint("free:", r.Device)), m.engine.Compactable(r.Device)
	need := (r.Size + sceneGranularity - 1) / sceneGranularity * sceneGranularity
	most := max(modelMemory/16, modelMemory*3/4-min(modelMemory*3/4, m.had[r.Device]))
	if hasGate(m.bytes) && slack > 0 || slack > most || free >= need {
		m.fail("operation %d: %d bytes cannot be had, though %d are free and %d are slack", m.operations, r.Size, free,
			slack)
	}
}

func (m *model) free(index int, operation func(*piece) error) {
	p := m.all[index]
	every := func(p *piece) bool { return true }
	fired := m.firedSoFar()
	if !p.paused && !p.lost && !p.intact() {
		m.fail("operation %d: contents of %#x are lost", m.operations, p.address)
	}
	if m.try("free", func() error { return operation(p) }) != nil {
		p.paused, p.lost = m.engine.PausedAt(p.address), true // it may have got half way
		m.resync(fired, every, func(p *piece) bool { return p.request.Backup == vmm.BackupNone })
		return
	}
	m.all[index] = m.all[len(m.all)-1]
	m.all = m.all[:len(m.all)-1]
	if err := m.engine.Free(p.address, false); !errors.Is(err, vmm.ErrInvalidAddress) {
		m.last = err
		m.fail("operation %d: %#x was freed twice", m.operations, p.address)
	}
}

// open makes the other engine map a piece, in the way that fits its kind, and give it back.
func (m *model) open(p *piece) {
	if p == nil {
		return
	}
	id, offset, _, err := m.engine.Shared().Name(p.address)
	if errors.Is(err, cuda.NotSupported) {
		return // a call that failed said that no memory is made so
	}
	if err != nil {
		m.last = err
		m.fail("operation %d: %#x cannot be shared", m.operations, p.address)
	}
	if p.paused {
		_ = m.try("open what is paused", func() error {
			_, err := m.other.Shared().Import(p.request.Device, vmm.Share{ID: id}, offset)
			if err == nil {
				m.fail("operation %d: %#x is opened while it is paused", m.operations, p.address)
			}
			if errors.Is(err, vmm.ErrSharePaused) {
				return nil
			}
			return err // of a call that was made to fail before the other engine asked
		})
		return
	}
	seen := *p
	if m.try("open", func() (err error) {
		seen.address, err = m.other.Shared().Import(p.request.Device, vmm.Share{ID: id}, offset)
		return err
	}) == nil {
		if !p.lost && !seen.intact() {
			m.fail("operation %d: %#x is not what was opened at %#x", m.operations, p.address, seen.address)
		}
		for m.try("close", func() error { return m.other.Shared().Close(seen.address, false) }) != nil {
		}
	}
	holds := func() bool {
		for range m.held.Range {
			return true
		}
		return false
	}
	for tries := 0; holds() && tries < 100; tries++ {
		m.other.FreeDeferred()
		m.other.Drain()
	}
	if holds() {
		m.fail("operation %d: %#x is not given back", m.operations, p.address)
	}
}

// copy is the program's own copy, on the device.
func (m *model) copy(from, to *piece) {
	if from == nil || from.paused || to.paused || from == to || from.lost || from.request.Device != to.request.Device ||
		from.request.Size != to.request.Size {
		return
	}
	if err := m.driver.MemcpyDtoDAsync(to.address, from.address, to.request.Size, 0); err != nil {
		return // no context is current yet
	}
	to.seed, to.lost = from.seed, false
	if err := m.driver.CtxSynchronize(); err != nil {
		m.fail("copying on the device: %v", err)
	}
}

func (m *model) transition(name, tag string, operation func(*vmm.Engine, vmm.Options) error) {
	o := m.options(tag)
	o.RetainBackup, o.Verify = m.retain, m.verify
	o.SaveAll = name == "pause" && m.serial%3 == 0
	for device := range m.had {
		if name == "resume" && m.had[device] == 0 {
			m.had[device] = m.engine.Records().Has(device)
		}
	}
	concerned := func(p *piece) bool { return tag == "" || p.request.Tag == tag }
	loses := func(p *piece) bool { return name == "discard" || p.request.Backup == vmm.BackupNone && !o.SaveAll }
	fired := m.firedSoFar()
	if m.try(name, func() error { return operation(m.engine, o) }) != nil {
		m.resync(fired, concerned, loses)
		return
	}
	for _, p := range m.all {
		switch {
		case !concerned(p):
		case name != "resume" && !p.paused:
			p.paused = true
			p.lost = p.lost || loses(p)
		case name == "resume" && p.paused:
			p.paused = false
			if p.lost {
				m.serial++
				p.fill(m.serial)
			}
		}
	}
	m.look(name)
}

// move leaves paused memory, and what it holds, as they are, whatever happens.
func (m *model) move(to vmm.BackupKind) {
	tag := m.tag()
	m.try("move", func() error { _, err := m.engine.Move(m.options(tag), to); return err })
	m.look("move")
}

// look compares everything with what it should be.
func (m *model) look(when string) {
	m.check(fmt.Sprintf("operation %d, %s", m.operations, when), true)
}

// resync finds out what is paused after an operation that failed: only what the operation concerned may be. What
// loses says has lost its contents then.
func (m *model) resync(fired int, concerned, loses func(*piece) bool) {
	for _, p := range m.all {
		paused := m.engine.PausedAt(p.address)
		if paused == p.paused {
			continue
		}
		if !concerned(p) || m.firedSoFar() == fired && !short(m.bytes) {
			m.fail("operation %d: %#x of tag %s is paused: %v", m.operations, p.address, p.request.Tag, paused)
		}
		p.paused = paused
		if paused && loses(p) {
			p.lost = true
		}
		if !paused && p.lost {
			m.serial++
			p.fill(m.serial)
		}
	}
	m.look("after it failed")
}

func (m *model) addUp() error {
	stats, err := m.engine.Records().Stats()
	if err != nil {
		return err
	}
	var want, got uint64
	for _, p := range m.all {
		want += p.request.Size
	}
	for _, d := range stats.Devices {
		for _, tag := range d.Tags {
			got += tag.LiveBytes
		}
	}
	if got < want { // frees that wait count as live
		m.fail("operation %d: %d bytes are live, the statistics have %d", m.operations, want, got)
	}
	return nil
}

func (m *model) backupPointer(p *piece) {
	if p == nil {
		return
	}
	var host uintptr
	err := m.try("a pointer to a backup", func() (err error) {
		host, err = m.engine.BackupPointer(p.address, p.request.Size, false)
		return err
	})
	if err == nil && host != 0 && p.paused && !p.lost && p.request.Size >= 8 && *wordAt(host) != p.seed*1_000_003 {
		m.fail("operation %d: the host copy of %#x is another's", m.operations, p.address)
	}
}

// modelOperations is how many operations the model plays; scripts/soak.sh asks for a million.
func modelOperations(t *testing.T) int { return hermetic.Number(t, "TMS_MODEL_OPERATIONS", 2000) }

func TestModel(t *testing.T) {
	seed := uint64(hermetic.Number(t, "TMS_MODEL_SEED", 1))
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(seed, 0))
	reserved := newExtents(t, 2)
	programs, fired := 0, 0
	for left := modelOperations(t); left > 0; left -= 200 {
		bytes := make([]byte, 900)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		f := modelFaults(bytes)
		programs++
		if _, wrong := attempt(t, dir, f, func(s *scene) { s.play(bytes, reserved) }); wrong != "" {
			path := keep(t, bytes)
			t.Fatalf("program %d of seed %d, kept as %s: %s", programs, seed, path, wrong)
		}
		fired += len(f.list())
	}
	t.Logf("%d programs, %d failures injected", programs, fired)
	require.Positive(t, fired)
}

// keep writes a program in the form of the fuzzing corpus, so that it can be tried again: go test -run FuzzEngine.
func keep(t *testing.T, bytes []byte) string {
	path := fmt.Sprintf("%s/tms-model-%d", os.TempDir(), os.Getpid())
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", bytes), 0o600))
	return path
}

// Threads each have a tag and allocations of their own, while calls fail now and then and one thread does what concerns
// everybody.
func TestModelThreads(t *testing.T) {
	f := &faults{}
	s := newScene(t, t.TempDir(), f)
	defer failpoint.Set(nil)
	rounds := max(40, modelOperations(t)/100)
	var dice atomic.Uint64
	failpoint.Set(func(call string) error {
		if dice.Add(0x9e3779b97f4a7c15)>>53 == 0 { // one in 2048
			return cuda.Unknown
		}
		return nil
	})
	var workers sync.WaitGroup
	for w := range 6 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 9))
			tag := string(rune('a' + w))
			var mine []*piece
			until := func(name string, operation func() error) {
				for tries := 0; ; tries++ {
					err := operation()
					if err == nil {
						return
					}
					if errors.Is(err, vmm.ErrInvariant) || tries > 20 {
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			}
			for round := range rounds {
				r := kinds[random.IntN(len(kinds))]
				r.Tag, r.Device, r.Size = tag, random.IntN(2), uint64(1+random.IntN(5*sceneGranularity))
				p := &piece{request: r}
				until("malloc", func() (err error) { p.address, err = s.engine.Malloc(r); return err })
				until("resume", func() error { return resume(s.engine, s.options(tag)) })
				p.fill(uint64(w*1_000_000 + round + 1))
				mine = append(mine, p)
				if random.IntN(2) == 0 {
					until("pause", func() error { return pause(s.engine, s.options(tag)) })
					if random.IntN(4) == 0 && len(mine) > 0 {
						until("free", func() error { return s.engine.Free(mine[0].address, false) })
						mine = mine[1:]
					}
					until("resume", func() error { return resume(s.engine, s.options(tag)) })
				}
				for i, p := range mine {
					if p.request.Backup == vmm.BackupNone {
						p.fill(p.seed)
					} else if !p.intact() {
						t.Errorf("contents of %d of thread %d are lost", i, w)
					}
				}
				for len(mine) > 12 {
					i := random.IntN(len(mine))
					until("free", func() error { return s.engine.Free(mine[i].address, false) })
					mine = append(mine[:i], mine[i+1:]...)
				}
			}
			for _, p := range mine {
				until("free", func() error { return s.engine.Free(p.address, false) })
			}
		})
	}
	var done atomic.Bool
	var chaos sync.WaitGroup
	chaos.Go(func() {
		for !done.Load() {
			_, _ = s.engine.Records().Stats()
			_ = s.engine.Grant()
			_ = s.engine.Prepare([]string{"a"})()
			s.engine.Trim()
			time.Sleep(50 * time.Microsecond) // the workers are to have the processor too
		}
	})
	workers.Wait()
	done.Store(true)
	chaos.Wait()
	failpoint.Set(nil)
	s.faults.mapped = 0 // not counted
	require.NotPanics(t, s.end)
	for len(s.warned) > 0 {
		require.NotContains(t, <-s.warned, vmm.ErrInvariant.Error())
	}
}
