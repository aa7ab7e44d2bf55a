package vmm_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// The sweep fails every call of a scenario that can fail, one at a time, and looks at what is left. By
// default it tries each call once for every way through the code that leads to it, TMS_SWEEP=full tries
// every one of them, with more errors (scripts/soak.sh). With -short, for the race detector, it tries some.
func fullSweep() bool { return os.Getenv("TMS_SWEEP") == "full" }

// The errors with which a call is made to fail.
var plausible = map[string][]error{
	"mmap":            {unix.ENOMEM},
	"munmap":          {unix.ENOMEM},
	"mkdir":           {unix.EROFS},
	"open":            {unix.EMFILE, unix.EACCES},
	"fstat":           {unix.EIO},
	"fallocate":       {unix.ENOSPC, unix.EOPNOTSUPP},
	"ftruncate":       {unix.EIO},
	"punch":           {unix.EOPNOTSUPP},
	"pwrite":          {unix.EIO, unix.ENOSPC, unix.EINTR},
	"pread":           {unix.EIO, unix.EINTR},
	"sync_file_range": {unix.EIO, unix.ENOSYS},
	"O_TMPFILE":       {unix.EOPNOTSUPP},
	"unlink":          {unix.EIO},
}

func errorsOf(call string) []error {
	list, system := plausible[call]
	switch {
	case !system && fullSweep():
		list = []error{cuda.Unknown, cuda.OutOfMemory, cuda.IllegalAddress, cuda.InvalidValue, cuda.NotSupported}
		if call == "cuCtxRecordEvent" {
			list = append(list, cuda.StreamCaptureUnsupported)
		}
	case call == "cuMemCreate" || call == "cuMemHostRegister_v2":
		list = []error{cuda.Unknown, cuda.OutOfMemory}
	case !system:
		list = []error{cuda.Unknown}
	case !fullSweep():
		list = list[:1]
	}
	return list
}

// silences are the failures that need not be reported, because the purpose of the call is reached anyway, or is tried
// again later. None of them may leak anything or lose contents.
var silences = []struct {
	calls string // "" stands for all
	in    string // a function on the way to the call, or "" for any
	err   error  // nil stands for any
	why   string
}{
	{"cuStreamDestroy_v2 cuEventDestroy_v2", "", nil, "a second try follows"},
	{"cuCtxRecordEvent", "(*Engine).Free", cuda.StreamCaptureUnsupported, "the free waits for the end of the capture"},
	{"cuCtxRecordEvent", "", cuda.NotSupported, "older drivers have none: cuCtxSynchronize waits"},
	{"cuEventCreate", "(*Contexts).record", cuda.NotSupported, "the same"},
	{"cuThreadExchangeStreamCaptureMode", "", nil,
		"that it cannot be set back: the thread is stopped by captures less than it asked for"},
	{"cuMemUnmap cuMemRelease", "(*Peer).detach", nil, "a second try follows, then one at the contents' end"},
	{"cuMemRelease", "(*Mapping).Drop", nil, "a second try follows, then one at each Retry"},
	{"cuMemRelease", "(*Peer).create", nil, "the same"},
	{"cuMemUnmap cuMemAddressFree", "(*Mapping).Aside", nil, "a second try follows, then one at each Retry"},
	{"cuDevicePrimaryCtxRelease_v2", "", nil, "a second try follows, then one at each Retry"},
	{"cuMemCreate", "(*Engine).replace", cuda.OutOfMemory, "what it was for goes through host memory"},
	{"cuCtxGetCurrent cuCtxPushCurrent_v2 cuMemGetInfo_v2", "(*batch).create", nil, "the resume waits, and looks again"},
	{"cuCtxGetCurrent cuCtxPushCurrent_v2 cuMemGetInfo_v2", "(*Engine).shortageOn", nil, "the resume tries"},
	{"cuMemCreate", "(*batch).create", cuda.OutOfMemory, "the resume waits for the memory that is on its way"},
	{"cuCtxPopCurrent_v2", "", nil, "the thread gets its context back in another way"},
	{"", "reclaim.(*Kind).empty", nil, "tried again by the next Retry"},
	{"", "digest.(*buffer).release", nil, "a second try follows, then one at each Retry"},
	{"", "(*Hasher).Trim", nil, "the same, where there is no context"},
	{"", "(*Hasher).LoadAside", nil, "the next pause loads it"},
	{"", "(*Engine).reap", nil, "the caller was told that it is done: tried again by the next pause, or FreeDeferred"},
	{"", "(*Engine).awaitDevices", nil, "the same"},
	{"", "cuda.OrderOf", nil, "the stream's freed memory serves it once the stream has reached the free"},
	{"cuEventRecord", "(*device).record", nil, "tried again with another event"},
	{"", "(*Engine).pollAll", nil, "the free waits for the devices, or goes on to wait"},
	{"cuDeviceGetAttribute", "newDevice", nil, "older drivers do not know the question"},
	{"cuDeviceGetUuid", "", nil, "the device has none to show"},
	{"", "(*Contexts).Finish", cuda.IllegalAddress, "in another device's context: what it was given has ended with it"},
	{"cuStreamGetCtx", "", cuda.NotSupported, "of a green context's stream: the current context is taken"},
	{"", "cuda.TakeStreams", nil, "the driver makes them when they are needed"},
	{"", "findPeers", nil, "the device is granted to no peer"},
	{"", "(*Contexts).FindUsers", nil, "the next grant asks again"},
	{"cuMemAddressReserve", "(*Space[...]).reserve", nil, "a smaller arena follows"},
	{"fallocate", "", unix.EOPNOTSUPP, "ftruncate follows"},
	{"punch", "", unix.EOPNOTSUPP, "the space comes back with the last section"},
	{"O_TMPFILE", "", unix.EOPNOTSUPP, "the file has a name until it is open"},
	{"sync_file_range", "", unix.ENOSYS, "fdatasync follows"},
	{"", "", unix.EINTR, "the call is made again"},
}

func maySilently(c call, err error) bool {
	for _, s := range silences {
		if (s.calls == "" || slices.Contains(strings.Fields(s.calls), c.name)) && strings.Contains(c.stack, s.in) &&
			(s.err == nil || errors.Is(err, s.err)) {
			return true
		}
	}
	return false
}

// call is a call that can fail: its name, and the way to it.
type call struct {
	name  string
	stack string
}

func (c call) String() string { return c.name + " in " + c.stack }

// faults counts calls, and fails some.
type faults struct {
	mu     sync.Mutex
	keep   bool
	calls  []call        // all so far, to be kept
	made   int           // so far
	plan   map[int]error // by how many calls there were before; or
	only   *call         // with which
	nth    int           // of those that are the same
	with   error
	fired  []call
	mapped int // mmap less munmap
	memory int // of a device, in bytes, or 0 for plenty
}

// ways caches what way has returned, by program counters: finding the functions' names would take a third of a sweep.
var ways struct {
	sync.Mutex
	known map[[64]uintptr]string
}

// way names the engine's functions on the way to a call, or returns "" if there are none.
func way(pcs *[64]uintptr, depth int) string {
	ways.Lock()
	defer ways.Unlock()
	if known, found := ways.known[*pcs]; found {
		return known
	}
	frames := runtime.CallersFrames(pcs[:depth])
	var path []string
	for {
		frame, more := frames.Next()
		if strings.Contains(frame.Function, "tms/vmm") && !strings.HasPrefix(frame.Function, "tms/vmm_test") &&
			!strings.HasPrefix(frame.Function, "tms/vmm/cuda.(*Driver).") {
			path = append(path, fmt.Sprintf("%s:%d", strings.TrimPrefix(frame.Function, "tms/vmm"), frame.Line))
		}
		if !more {
			break
		}
	}
	if ways.known == nil {
		ways.known = map[[64]uintptr]string{}
	}
	ways.known[*pcs] = strings.Join(path, " < ")
	return ways.known[*pcs]
}

func (f *faults) err(name string) error {
	var pcs [64]uintptr
	depth := runtime.Callers(3, pcs[:])
	c := call{name, way(&pcs, depth)}
	if c.stack == "" {
		return nil // the test's own
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.plan[f.made]
	f.made++
	if f.only != nil && *f.only == c {
		if f.nth--; f.nth == 0 {
			err = f.with
		}
	}
	if f.keep {
		f.calls = append(f.calls, c)
	}
	switch {
	case err != nil:
		f.fired = append(f.fired, c)
	case name == "mmap":
		f.mapped++
	case name == "munmap":
		f.mapped--
	}
	return err
}

// list is what was made to fail.
func (f *faults) list() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.fired)
}

func (f *faults) count() (made, fired int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made, len(f.fired)
}

// ended reports whether something of the kind is left because its destruction returned that a kernel's fault has ended
// the context. CUDA returns that whether it destroyed the thing or not, so there is no second try.
func (f *faults) ended(kind string) bool {
	destroys := map[string]string{"streams": "cuStreamDestroy_v2", "events": "cuEventDestroy_v2"}[kind]
	return f.only != nil && f.only.name == destroys && errors.Is(f.with, cuda.IllegalAddress)
}

// found says what is wrong after a failure; the scenario panics with it.
type found string

// scene is an engine on a fresh simulator, and what is known of its allocations.
type scene struct {
	inTurn  bool // a resume without memory makes room by contents that are back, and tries again
	t       *testing.T
	sim     *cudasim.Sim
	driver  *cuda.Driver
	engine  *vmm.Engine
	faults  *faults
	dir     string
	arenas  uint64
	all     []*piece
	reports int // errors and warnings
	warned  chan string
	last    error
	context cuda.Context
	open    []string
}

// piece is an allocation.
type piece struct {
	address uintptr
	request vmm.Request
	seed    uint64
	paused  bool
	lost    bool // by design
}

var kinds = []vmm.Request{{}, {Backup: vmm.BackupHost}, {Backup: vmm.BackupDisk},
	{Backup: vmm.BackupHost, Incremental: true}, {Backup: vmm.BackupPeer, Target: -1}}

const (
	sceneGranularity = 64 << 10
	kib              = 1 << 10
)

func newScene(t *testing.T, dir string, f *faults) *scene {
	t.Helper()
	t.Setenv("CUDASIM_DEVICES", "2")
	t.Setenv("CUDASIM_MEMORY", "1G")
	if f.memory > 0 {
		t.Setenv("CUDASIM_MEMORY", fmt.Sprint(f.memory))
	}
	t.Setenv("CUDASIM_GRANULARITY", fmt.Sprint(sceneGranularity))
	sim := cudasim.Start(t)
	driver, err := cuda.Open(sim.Path)
	require.NoError(t, err)
	s := &scene{t: t, sim: sim, driver: driver, faults: f, dir: dir, warned: make(chan string, 1000)}
	s.engine = vmm.NewOn(driver)
	vmm.HostOf(s.engine).SetAnnounce(func(uintptr, uint64) error { s.arenas++; return nil })
	vmm.HostOf(s.engine).SetWarn(func(line string) {
		select {
		case s.warned <- line:
		default: // there are enough
		}
	})
	s.engine.CheckInvariants(true)
	s.open = openFiles(t)
	failpoint.Set(f.err)
	return s
}

// openFiles lists the files and directories that are open, but for the simulator's memory.
func openFiles(t *testing.T) (open []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", entry.Name()))
		if err == nil && strings.HasPrefix(target, "/") && !strings.HasPrefix(target, "/memfd:") &&
			!strings.HasPrefix(target, "/proc/") {
			open = append(open, target)
		}
	}
	slices.Sort(open)
	return open
}

func (s *scene) fail(format string, arguments ...any) {
	panic(found(fmt.Sprintf(format, arguments...) + fmt.Sprintf("; after %v; last error: %v", s.faults.list(), s.last)))
}

func readable(address uintptr) bool {
	var into [8]byte
	local := []unix.Iovec{{Base: &into[0], Len: 8}}
	n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: address, Len: 8}}, 0)
	return err == nil && n == 8
}

func (p *piece) fill(seed uint64) {
	p.seed, p.lost = seed, false
	for at := uintptr(0); at+8 <= uintptr(p.request.Size); at += 512 {
		*wordAt(p.address + at) = seed*1_000_003 + uint64(at)
	}
}

func (p *piece) intact() bool {
	for at := uintptr(0); at+8 <= uintptr(p.request.Size); at += 512 {
		if *wordAt(p.address + at) != p.seed*1_000_003+uint64(at) {
			return false
		}
	}
	return true
}

// check looks at the contents of everything that is active. With exact, it also looks whether each thing is where it
// should be.
func (s *scene) check(when string, exact bool) {
	for _, p := range s.all {
		paused := s.engine.PausedAt(p.address)
		if exact && paused != p.paused || !paused && !readable(p.address) {
			s.fail("%s: %#x of tag %s is paused: %v", when, p.address, p.request.Tag, paused)
		}
		if !paused && !p.paused && !p.lost && !p.intact() {
			s.fail("%s: contents of %#x, %d bytes of tag %s, backup %d, are lost",
				when, p.address, p.request.Size, p.request.Tag, p.request.Backup)
		}
	}
}

// do makes an operation. When it fails and a failure was planned, everything must be intact, and the operation must
// work when tried again, once for every failure.
func (s *scene) do(name string, operation func() error) {
	for tries := 0; ; tries++ {
		err := operation()
		if err == nil {
			break
		}
		s.last = err
		s.reports++
		_, fired := s.faults.count()
		if errors.Is(err, vmm.ErrInvariant) || tries >= fired {
			s.fail("%s, try %d", name, tries+1)
		}
		// A pause that could not release has paused.
		moved := strings.Contains(err.Error(), "pause again") || fired > 1
		s.check("after a failed "+name, !moved)
	}
	if context, err := s.driver.CtxGetCurrent(); err != nil || s.context != 0 && context != s.context {
		s.fail("%s: the thread's context is %#x, not %#x (%v)", name, context, s.context, err)
	}
}

func (s *scene) malloc(r vmm.Request) {
	s.do("malloc", func() error {
		address, err := s.engine.Malloc(r)
		if err == nil {
			p := &piece{address: address, request: r}
			p.fill(uint64(len(s.all) + 1))
			s.all = append(s.all, p)
		}
		return err
	})
}

// options returns the options of a transition of tags, where "" stands for every tag.
func (s *scene) options(tags ...string) vmm.Options {
	o := vmm.Options{DiskDir: s.dir, ExtentBytes: 8 * sceneGranularity}
	if tags[0] != "" {
		o.Tags = tags
	}
	return o
}

func (s *scene) pause(tag string) { s.pauseAs(s.options(tag)) }

func (s *scene) pauseAs(o vmm.Options) {
	s.do("pause "+strings.Join(o.Tags, " "), func() error { return pause(s.engine, o) })
	for _, p := range s.all {
		if tag := p.request.Tag; o.Tags == nil || slices.Contains(o.Tags, tag) {
			p.lost = p.lost || p.request.Backup == vmm.BackupNone ||
				o.Discard && !p.paused && !slices.Contains(o.Except, tag)
			p.paused = true
		}
	}
	s.check("paused", true)
}

func (s *scene) resume(tags ...string) {
	s.do("resume "+strings.Join(tags, " "), func() error { return resume(s.engine, s.options(tags...)) })
	for i, p := range s.all {
		if tags[0] == "" || slices.Contains(tags, p.request.Tag) {
			p.paused = false
			if p.lost {
				p.fill(uint64(1000 + i))
			}
		}
	}
	s.check("resumed", true)
}

func (s *scene) move(tag string, to vmm.BackupKind) {
	s.do("move "+tag, func() error { _, err := s.engine.Move(s.options(tag), to); return err })
	s.check("moved", true)
}

// free frees what wanted says, by position.
func (s *scene) free(wanted func(int) bool) {
	for i, p := range slices.Clone(s.all) {
		if !wanted(i) {
			continue
		}
		s.do("free", func() error { return s.engine.Free(p.address, false) })
		s.all = slices.DeleteFunc(s.all, func(q *piece) bool { return q == p })
	}
}

// end frees everything and checks that nothing is left.
func (s *scene) end() {
	s.free(func(int) bool { return true })
	for range 3 {
		s.engine.FreeDeferred()
		s.engine.Trim()
		s.engine.Drain()
	}
	failpoint.Set(nil)
	for _, name := range []string{"handles", "mappings", "registrations", "streams", "events", "pending"} {
		if n := s.sim.Stat(name); n != 0 && !s.faults.ended(name) {
			s.fail("%d %s are left over", n, name)
		}
	}
	if n := s.sim.Stat("reservations"); n != s.arenas {
		s.fail("%d reservations are left over, %d are arenas", n, s.arenas)
	}
	if s.faults.mapped != 0 {
		s.fail("%d mappings of host memory are left over", s.faults.mapped)
	}
	if names, _ := filepath.Glob(filepath.Join(s.dir, "*")); len(names) != 0 {
		s.fail("files are left over: %v", names)
	}
	if open := openFiles(s.t); !slices.Equal(open, s.open) {
		s.fail("descriptors are left open: %v, were %v", open, s.open)
	}
	s.reports += len(s.warned)
}

// everything is the scenario of the sweep.
func (s *scene) everything() {
	sizes := []uint64{300, 64 * kib, 20 * kib, 64*kib + 1, 4 * kib, 192 * kib, 128 * kib}
	for i := range 50 {
		r := kinds[i%5]
		r.Size, r.Device, r.Tag = sizes[i%len(sizes)], i/5%2, string(rune('a'+i/10%3))
		s.malloc(r)
		s.context, _ = s.driver.CtxGetCurrent()
	}
	s.pause("")
	s.free(func(i int) bool { return i%7 == 3 })
	s.move("b", vmm.BackupDisk)
	s.move("", vmm.BackupDisk)
	s.move("c", vmm.BackupHost)
	s.resume("")
	for i, p := range s.all {
		if i%4 == 0 {
			p.fill(uint64(2000 + i))
		}
	}
	s.free(func(i int) bool { return i%5 == 1 })
	s.do("grant", s.engine.Grant)
	s.pause("b")
	s.resume("b")
	if last := len(s.all) - 1; last >= 0 {
		p := s.all[last]
		p.lost = true
		s.do("free after", func() error { return s.engine.FreeAfter(p.address, 0) })
		s.all = s.all[:last]
	}
	s.inOrder()
	s.do("prepare", func() error { return s.engine.Prepare([]string{"a"})() })
	s.do("stats", func() error { _, err := s.engine.Records().Stats(); return err })
	s.end()
}

// inOrder allocates and frees in the order of a stream.
func (s *scene) inOrder() {
	for _, size := range []uint64{3 * sceneGranularity, 3 * sceneGranularity, 300, 300} {
		r := vmm.Request{Size: size, Tag: "a", Ordered: true, Context: s.context}
		last := len(s.all)
		if s.malloc(r); len(s.all) > last {
			p := s.all[last]
			p.lost = true
			s.do("free in order", func() error { return s.engine.FreeAfter(p.address, 0) })
			s.all = s.all[:last]
		}
	}
}

// attempt plays a scenario with failures planned; "" when nothing is wrong.
func attempt(t *testing.T, dir string, f *faults, scenario func(*scene)) (s *scene, wrong string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s = newScene(t, dir, f)
	defer failpoint.Set(nil)
	defer func() {
		switch v := recover().(type) {
		case nil:
		case found:
			wrong = string(v)
		default:
			panic(v)
		}
		_ = s.driver.CtxSetCurrent(0)
	}()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-done:
		case <-time.After(5 * time.Minute):
			panic(fmt.Sprintf("hangs after failing %v", f.list()))
		}
	}()
	scenario(s)
	return s, ""
}

// userMapped is a scenario of memory that the program maps itself: three chunks, two of them kept in host memory, two
// tags.
func (s *scene) userMapped() {
	const size = 2 * sceneGranularity
	base, err := s.driver.MemAddressReserve(3*size, 0)
	require.NoError(s.t, err)
	s.context, _ = s.driver.CtxGetCurrent()
	var handles []cuda.Handle
	for n := range 3 {
		r := kinds[1-n%2]
		r.Size, r.Tag = size, string(rune('a'+n/2))
		p := &piece{address: base + uintptr(n*size), request: r}
		var handle cuda.Handle
		s.do("create", func() (err error) {
			handle, err = s.engine.UserMapped().Create(r, cuda.PinnedOn(0))
			return err
		})
		s.do("map", func() error { return s.engine.UserMapped().Map(p.address, size, 0, handle, 0) })
		s.do("set access", func() error { return s.engine.UserMapped().SetAccess(p.address, size, onDevice0) })
		p.fill(uint64(n + 1))
		s.all, handles = append(s.all, p), append(handles, handle)
	}
	s.pause("")
	s.inSteps(func(i int) int { return i })
	s.pause("")
	s.resume("")
	s.pause("b")
	last := s.all[2]
	s.all = s.all[:2]
	s.do("unmap what is paused", func() error { return s.engine.UserMapped().Unmap(last.address, size) })
	s.resume("b")
	s.do("map what has come back", func() error { return s.engine.UserMapped().Map(last.address, size, 0, handles[2], 0) })
	s.do("set its access", func() error { return s.engine.UserMapped().SetAccess(last.address, size, onDevice0) })
	last.paused, s.all = false, append(s.all, last)
	s.pause("b")
	s.all = s.all[:2]
	s.do("unmap what is paused", func() error { return s.engine.UserMapped().Unmap(last.address, size) })
	s.do("release it", func() error { return s.engine.UserMapped().Release(handles[2]) })
	s.do("release what is mapped", func() error { return s.engine.UserMapped().Release(handles[0]) })
	left := s.all
	s.all = nil
	for _, p := range left {
		s.do("unmap", func() error { return s.engine.UserMapped().Unmap(p.address, size) })
	}
	s.do("release", func() error { return s.engine.UserMapped().Release(handles[1]) })
	require.NoError(s.t, s.driver.MemAddressFree(base, 3*size))
	s.end()
}

// toward is a scenario of memory on two devices, whose contents wait with each other.
func (s *scene) toward() {
	kept := &descriptors.Holder{}
	s.engine.UseDescriptors(kept)
	s.inTurn = true
	for i := range 10 {
		r := kinds[i%5]
		r.Size, r.Device, r.Tag = 20*kib*uint64(i+1), i/5, string(rune('a'+i%2))
		s.malloc(r)
		s.context, _ = s.driver.CtxGetCurrent()
	}
	o := s.options("")
	o.Toward = stats.Destinations{}
	held := s.engine.Records().Recorded().Devices
	for i, d := range held {
		o.Toward[d.UUID] = stats.Destination{Device: held[1-i].UUID, Room: 4 * sceneGranularity}
	}
	s.pauseAs(o)
	s.resume("a")
	s.resume("")
	s.pauseAs(o)
	s.free(func(i int) bool { return i%3 == 1 })
	s.resume("")
	s.end()
	if kept.Count() > 0 {
		s.fail("%d descriptors are left over", kept.Count())
	}
}

// together is a scenario of a few tags that go as one, and of another that stays.
func (s *scene) together() {
	for i := range 8 {
		r := kinds[i/4]
		r.Size, r.Tag, r.Incremental = 20*kib, string(rune('a'+i%4)), r.Backup == vmm.BackupHost
		s.malloc(r)
		s.context, _ = s.driver.CtxGetCurrent()
	}
	o := s.options("b", "c", "a", "b")
	s.pauseAs(o)
	s.resume("b", "a", "b")
	o.Discard, o.Except = true, []string{"a"}
	s.pauseAs(o) // c is paused already, and keeps what it has
	s.resume("c", "a", "b")
	s.pauseAs(o)
	s.resume("")
	s.end()
}

// sparse is a scenario of memory of which a pause keeps parts: what is live, and not a block of zeros. The second pause
// uses the host memory of the first.
func (s *scene) sparse() {
	made := func(tag string, size, live uint64, kind vmm.BackupKind) *piece {
		s.malloc(vmm.Request{Size: size, Tag: tag, Backup: kind})
		s.context, _ = s.driver.CtxGetCurrent()
		p := s.all[len(s.all)-1]
		p.request.Size = live // all that is looked at
		return p
	}
	part, zeros := made("a", 6*mib, 2*mib, vmm.BackupSparse), made("a", 2*mib, 0, vmm.BackupSparse)
	clear(bytesAt(part.address+2*mib, 2*mib))
	clear(bytesAt(zeros.address, 2*mib))
	live := made("b", 256*kib, 96*kib, vmm.BackupHost)
	s.do("prepare", func() error { return s.engine.Prepare(nil)() })
	for range 2 {
		s.do("live", func() error {
			return s.engine.Live(live.address, 256*kib,
				[]store.Range{{Size: 64 * kib}, {Offset: 64 * kib, Size: 32 * kib}})
		})
		s.pause("")
		s.do("resume", func() error {
			o := s.options("")
			o.RetainBackup = true
			return resume(s.engine, o)
		})
		for _, p := range s.all {
			p.paused = false
		}
		s.check("resumed", true)
		a, b := bytesAt(zeros.address, 2*mib), bytesAt(part.address+2*mib, 2*mib)
		if !bytes.Equal(a, b) || !bytes.Equal(a, make([]byte, 2*mib)) {
			s.fail("zeros did not come back")
		}
	}
	s.end()
}

// The same for memory of which parts are kept.
func TestSweepSparse(t *testing.T) { sweep(t, (*scene).sparse, 50, fullSweep()) }

func TestSweep(t *testing.T) { sweep(t, (*scene).everything, 100, fullSweep()) }

// The same for contents that wait where the process moves.
func TestSweepToward(t *testing.T) {
	t.Setenv("CUDASIM_SHARED", fmt.Sprint("sweep-", os.Getpid()))
	sweep(t, (*scene).toward, 50, fullSweep())
}

// Wherever a pause or resume of several tags fails, each tag is as it was.
func TestSweepTogether(t *testing.T) { sweep(t, (*scene).together, 100, true) }

// The same for memory that a program maps itself.
func TestSweepUserMapped(t *testing.T) { sweep(t, (*scene).userMapped, 20, fullSweep()) }

// sweep fails each call of a scenario that has its own stack, or with all every call.
func sweep(t *testing.T, scenario func(*scene), least int, all bool) {
	dir := t.TempDir()
	if _, wrong := attempt(t, dir, &faults{}, scenario); wrong != "" { // what is done once in a process is behind us
		t.Fatal(wrong)
	}
	base := &faults{keep: true}
	_, wrong := attempt(t, dir, base, scenario)
	require.Empty(t, wrong, "without any failure")
	type point struct {
		call
		nth int
	}
	var points []point
	times := map[call]int{}
	for _, c := range base.calls {
		if times[c]++; times[c] == 1 || all {
			points = append(points, point{c, times[c]})
		}
	}
	swept, failures, quiet := 0, 0, map[string]int{}
	every := 1
	if testing.Short() || hermetic.Quick {
		every, least = 20, least/20
	}
	for i := 0; i < len(points); i += every {
		p := points[i]
		for _, code := range errorsOf(p.name) {
			f := &faults{only: &p.call, nth: p.nth, with: code}
			s, wrong := attempt(t, dir, f, scenario)
			fired := f.list()
			if len(fired) == 0 {
				continue
			}
			swept++
			if wrong == "" && s.reports == 0 {
				quiet[p.String()]++
				again := s.inTurn && code == cuda.OutOfMemory && strings.Contains(fired[0].stack, "(*Engine).restore")
				if !again && !maySilently(fired[0], code) {
					wrong = "not reported"
				}
			}
			if wrong != "" {
				failures++
				t.Errorf("%v failing with %v: %s", fired[0], code, wrong)
				dir = t.TempDir()
			}
		}
	}
	names := slices.Sorted(maps.Keys(quiet))
	t.Logf("%d calls in the scenario, %d points swept, %d failures found", len(base.calls), swept, failures)
	for _, name := range names {
		t.Logf("not reported: %s, %d times", name, quiet[name])
	}
	require.Greater(t, swept, least)
}

func wordAt(address uintptr) *uint64 { return (*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&address))) }

// TestSweepPairs fails every pair of calls of a pause, and of a resume: both hit the one operation.
func TestSweepPairs(t *testing.T) {
	dir := t.TempDir()
	swept, failures := 0, 0
	random := rand.New(rand.NewPCG(1, 2))
	stride := func() int { return 1 + random.IntN(600) }
	if fullSweep() {
		stride = func() int { return 1 }
	}
	for _, pausing := range []bool{true, false} {
		play := func(f *faults) (reached bool) {
			_, wrong := attempt(t, dir, f, func(s *scene) { reached = s.pair(pausing) })
			if wrong != "" {
				failures++
				t.Error(wrong)
				dir = t.TempDir()
			}
			return reached
		}
		base := &faults{keep: true}
		play(base)
		t.Logf("%d calls", len(base.calls))
		firsts := map[call]bool{}
		for first, c := range base.calls {
			if firsts[c] && !fullSweep() {
				continue
			}
			firsts[c] = true
			if (testing.Short() || hermetic.Quick) && len(firsts)%20 != 0 {
				continue
			}
			for second := first + 1; ; second += stride() {
				f := &faults{plan: map[int]error{first: cuda.Unknown, second: cuda.Unknown}}
				if !play(f) {
					break
				}
				swept++
			}
		}
	}
	t.Logf("%d pairs swept, %d failures found", swept, failures)
}

// pair makes allocations of every kind and pauses and resumes them; the planned calls fail in one of the two. It
// reports whether all of them did.
func (s *scene) pair(pausing bool) bool {
	f := s.faults
	s.faults = &faults{}
	failpoint.Set(s.faults.err)
	for i, r := range kinds {
		r.Size, r.Device, r.Tag = []uint64{20 * kib, 128 * kib}[i%2], i%2, "t"
		s.malloc(r)
	}
	s.engine.Drain()
	if !pausing {
		s.pause("t")
	}
	s.engine.Drain()
	f.mapped = s.faults.mapped
	planned := f.plan
	s.faults = f
	failpoint.Set(f.err)
	if pausing {
		s.pause("t")
	} else {
		s.resume("t")
	}
	f.mu.Lock()
	reached := len(f.fired) == len(planned)
	f.plan = nil
	f.mu.Unlock()
	if pausing {
		s.resume("t")
	}
	s.pause("t")
	s.resume("t")
	s.end()
	return reached
}
