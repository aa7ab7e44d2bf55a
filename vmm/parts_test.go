package vmm_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// pairOf is two programs on a device that has room for one of them.
type pairOf struct {
	out, in *scene
	hog     cuda.Handle
}

// newPair makes the two: the one that is to leave, with contents of every kind, is active, and the other is paused.
func (s *scene) newPair(outs, ins int, tags string, settings ...func(*vmm.Engine)) *pairOf {
	in := *s
	in.engine = vmm.NewOn(s.driver)
	for _, set := range settings {
		set(s.engine)
		set(in.engine)
	}
	vmm.HostOf(in.engine).SetAnnounce(func(uintptr, uint64) error { s.arenas++; return nil })
	vmm.HostOf(in.engine).SetWarn(vmm.HostOf(s.engine).Warn)
	in.engine.CheckInvariants(true)
	p := &pairOf{out: s, in: &in}
	fill := func(s *scene, count int) {
		for i := range count {
			r := kinds[i%len(kinds)]
			r.Size, r.Tag = sceneGranularity*uint64(1+i%3), tags[i%len(tags):][:1]
			s.malloc(r)
			s.context, _ = s.driver.CtxGetCurrent()
		}
	}
	fill(p.in, ins)
	p.in.pauseAs(p.in.options(""))
	fill(p.out, outs)
	return p
}

// fillDevice leaves only these bytes free.
func (p *pairOf) fillDevice(free uint64) {
	var err error
	p.hog, err = p.out.driver.MemCreate(p.out.sim.Stat("free:0")-free, 0)
	require.NoError(p.out.t, err)
}

// onDevices returns how much device memory the program has.
func (s *scene) onDevices() (bytes uint64) {
	for _, d := range s.engine.Records().Recorded().Devices {
		for _, tag := range d.Tags {
			bytes += tag.PhysicalBytes
		}
	}
	return bytes
}

// swap has one leave and the other come in parts, as the command does, and reports whether that was done. If not, both
// are as before.
func (p *pairOf) swap(o vmm.Options) (swapped bool) {
	all, stop := make(chan struct{}), make(chan struct{})
	came := make(chan error, 1)
	comes := o
	comes.Coming, comes.Cancel = &vmm.Coming{All: all}, stop
	go func() { came <- resume(p.in.engine, comes) }()
	o.InParts, o.Gated = true, true
	left := pause(p.out.engine, o)
	if left == nil {
		close(all)
	} else {
		close(stop)
	}
	back := <-came
	for _, err := range []error{left, back} {
		if errors.Is(err, vmm.ErrInvariant) {
			p.out.last = err
			p.out.fail("a swap")
		}
		if err != nil {
			p.out.reports++
			p.out.last = err
		}
	}
	if left != nil {
		if back == nil {
			p.out.fail("IN has not waited for OUT")
		}
		p.in.check("a swap that failed", true)
		// The pause may have ended with an extent that the driver does not release: then all else is gone.
		undone := strings.Contains(left.Error(), "pause again") || p.out.allPaused()
		p.out.do("undo", func() error { return resume(p.out.engine, p.out.options("")) })
		for i, piece := range p.out.all {
			if undone && piece.request.Backup == vmm.BackupNone && !piece.intact() {
				piece.fill(uint64(3000 + i))
			}
		}
		p.out.check("a swap that was undone", true)
		return false
	}
	for _, piece := range p.out.all {
		piece.paused, piece.lost = true, piece.lost || piece.request.Backup == vmm.BackupNone
	}
	p.out.check("it has left", true)
	if back != nil {
		p.in.check("it has not come", true)
		p.in.do("resume", func() error { return resume(p.in.engine, p.in.options("")) })
	}
	p.in.active()
	return true
}

// allPaused reports whether nothing is active.
func (s *scene) allPaused() bool {
	return !slices.ContainsFunc(s.all, func(p *piece) bool { return !s.engine.PausedAt(p.address) })
}

// active notes that all is back.
func (s *scene) active() {
	for i, p := range s.all {
		if p.paused = false; p.lost {
			p.fill(uint64(1000 + i))
		}
	}
	s.check("it has come", true)
}

// end frees everything.
func (p *pairOf) end() {
	p.in.free(func(int) bool { return true })
	for range 3 {
		p.in.engine.FreeDeferred()
		p.in.engine.Trim()
		p.in.engine.Drain()
	}
	if p.hog != 0 {
		require.NoError(p.out.t, p.out.driver.MemRelease(p.hog))
	}
	p.out.reports += p.in.reports
	p.out.end()
}

// Whichever call fails in either of two programs that change places, one of them has the device, and nothing is lost.
func TestSweepBothDirections(t *testing.T) {
	sweep(t, func(s *scene) {
		p := s.newPair(15, 12, "ab")
		if s.onDevices() < 20*sceneGranularity { // an allocation has failed for good
			p.end()
			return
		}
		p.fillDevice(2 * sceneGranularity)
		p.swap(s.options(""))
		p.end()
	}, 100, fullSweep())
}

// The same with contents in reserved memory, and with blocks that are compared.
func TestSweepBothDirectionsReserved(t *testing.T) {
	defer vmm.PartBytes(vmm.PartBytes(2 * sceneGranularity)) // each takes an extent, until there is none
	reserved := newExtents(t, 8)
	sweep(t, func(s *scene) {
		kept := &descriptors.Holder{}
		p := s.newPair(9, 6, "a", func(e *vmm.Engine) { reserved.serve(e, kept) })
		p.fillDevice(sceneGranularity)
		o := s.options("")
		o.Verify = true
		p.swap(o)
		p.end()
		lost := 8 - len(reserved.free)
		if kept.Count() > 0 || lost > len(s.faults.list()) {
			s.fail("%d descriptors are left over, and %d extents are lost", kept.Count(), lost)
		}
		reserved.fill(8)
	}, 50, fullSweep())
}

// Zeros, and what the program has said is dead, are not saved; the rest comes back when two change places, and is
// verified.
func TestBothDirectionsOfSparseContents(t *testing.T) {
	s := newScene(t, t.TempDir(), &faults{})
	defer failpoint.Set(nil)
	p := s.newPair(0, 0, "a")
	o := s.options("")
	o.Verify = true
	const size = 8 * mib
	for number, one := range []*scene{p.in, p.out} {
		for i := range 6 {
			one.malloc(vmm.Request{Size: size, Tag: "a", Backup: []vmm.BackupKind{vmm.BackupSparse, vmm.BackupHost}[i%2]})
			piece := one.all[i]
			piece.request.Size = 2 * mib // all that is looked at
			clear(bytesAt(piece.address+2*mib, 4*mib))
		}
		if number == 0 {
			one.pauseAs(o)
		}
	}
	p.fillDevice(0)
	for range 3 {
		for i, piece := range p.out.all {
			if i%2 == 1 {
				require.NoError(t, p.out.engine.Live(piece.address, size, []store.Range{{Size: 3 * mib}}))
			}
		}
		require.True(t, p.swap(o))
		for i, piece := range p.in.all {
			if i%2 == 0 {
				require.Equal(t, make([]byte, 4*mib), bytesAt(piece.address+2*mib, 4*mib))
			}
		}
		host := uint64(0)
		for _, tag := range p.out.engine.Records().Recorded().Devices[0].Tags {
			host += tag.HostBytes
		}
		require.Less(t, host, uint64(6*size))
		p.in, p.out = p.out, p.in
	}
	p.in, p.out = p.out, p.in
	p.end()
}

// IN takes memory while OUT still saves: without that, neither could go on here.
func TestBothDirectionsAtOnce(t *testing.T) {
	s := newScene(t, t.TempDir(), &faults{})
	defer failpoint.Set(nil)
	p := s.newPair(12, 12, "a")
	p.fillDevice(0)
	var once sync.Once
	made := s.sim.Stat("calls:cuMemCreate")
	saves := 0
	var mutex sync.Mutex
	failpoint.Set(func(call string) error {
		_ = s.faults.err(call) // which counts
		mutex.Lock()
		if call == "cuMemcpyDtoHAsync_v2" {
			saves++
		}
		now := saves
		mutex.Unlock()
		if now == 4 {
			once.Do(func() {
				for until := time.Now().Add(time.Minute); s.sim.Stat("calls:cuMemCreate") == made; {
					if time.Sleep(time.Millisecond); time.Now().After(until) {
						t.Error("IN has taken nothing")
						return
					}
				}
			})
		}
		return nil
	})
	require.True(t, p.swap(s.options("")))
	require.GreaterOrEqual(t, saves, 4)
	p.in, p.out = p.out, p.in
	require.True(t, p.swap(s.options("")))
	p.in, p.out = p.out, p.in
	p.end()
}

// IN leaves free what others had free before, until all has come.
func TestWhatComesLeavesSomeFree(t *testing.T) {
	s := newScene(t, t.TempDir(), &faults{})
	defer failpoint.Set(nil)
	p := s.newPair(0, 6, "a")
	need := uint64(0)
	for _, piece := range p.in.all {
		need += piece.request.Size
	}
	p.fillDevice(need)
	least := s.sim.Stat("free:0")
	uuid := p.in.engine.Records().Recorded().Devices[0].UUID
	require.NotEmpty(t, uuid)
	all, came := make(chan struct{}), make(chan error, 1)
	leave := 2 * uint64(sceneGranularity)
	go func() {
		o := vmm.Options{DiskDir: s.dir}
		o.Coming = &vmm.Coming{All: all, Leave: map[string]uint64{uuid: leave}}
		came <- resume(p.in.engine, o)
	}()
	require.Eventually(t, func() bool {
		least = min(least, s.sim.Stat("free:0"))
		return least < leave+3*sceneGranularity
	}, time.Minute, time.Millisecond)
	require.GreaterOrEqual(t, least, leave)
	require.True(t, p.in.allPaused())
	close(all)
	require.NoError(t, <-came)
	require.Zero(t, s.sim.Stat("free:0"))
	p.in.active()
	p.end()
}

// A resume that is withdrawn gives everything back.
func TestWhatDoesNotCome(t *testing.T) {
	s := newScene(t, t.TempDir(), &faults{})
	defer failpoint.Set(nil)
	p := s.newPair(0, 6, "a")
	p.fillDevice(4 * sceneGranularity)
	stop, came := make(chan struct{}), make(chan error, 1)
	go func() {
		o := vmm.Options{DiskDir: s.dir}
		o.Coming, o.Cancel = &vmm.Coming{All: make(chan struct{})}, stop
		came <- resume(p.in.engine, o)
	}()
	require.Eventually(t, func() bool { return s.sim.Stat("free:0") < 4*sceneGranularity }, time.Minute, time.Millisecond)
	close(stop)
	err := <-came
	require.Equal(t, int(cuda.NotReady), cuda.Code(err))
	require.ErrorContains(t, err, "does not come")
	require.EqualValues(t, 4*sceneGranularity, s.sim.Stat("free:0"))
	p.in.check("it does not come", true)
	p.end()
}

// A resume waits for what comes, although the resume before it has waited in vain.
func TestAResumeAheadAfterAWait(t *testing.T) {
	s := newScene(t, t.TempDir(), &faults{})
	defer failpoint.Set(nil)
	p := s.newPair(0, 6, "a")
	p.fillDevice(4 * sceneGranularity)
	o := vmm.Options{DiskDir: s.dir, Wait: time.Millisecond}
	require.ErrorIs(t, resume(p.in.engine, o), cuda.OutOfMemory)
	all, came := make(chan struct{}), make(chan error, 1)
	go func() {
		o := vmm.Options{DiskDir: s.dir}
		o.Coming = &vmm.Coming{All: all}
		came <- resume(p.in.engine, o)
	}()
	for s.sim.Stat("free:0") == 4*sceneGranularity {
		select {
		case err := <-came:
			require.Fail(t, "it has not waited", err)
		case <-time.After(time.Millisecond):
		}
	}
	require.NoError(t, p.out.driver.MemRelease(p.hog))
	p.hog = 0
	close(all)
	require.NoError(t, <-came)
	p.in.active()
	p.end()
}
