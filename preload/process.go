package main

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/machine/hostmemory"
	"tms/preload/goruntime"
	"tms/preload/watch"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool/torch"
	"tms/vmm/stats"
)

// Process owns what this process knows beside C: a vmm.Host for the engine, and a server.Process for those that steer
// it from outside, over the socket that internal/control/server serves.
type Process struct {
	starting sync.Mutex // held while the engine is made
	engine   atomic.Pointer[vmm.Engine]
	driver   *cuda.Driver // of the engine

	gate       gate
	checkpoint checkpoint
	nccl       nccl
	sets       sets
	pools      pools
	socket     *server.Server
	ledger     *hostmemory.Ledger

	keeperSilent   atomic.Pointer[time.Time] // when the keeper last did not answer
	askingHolders  atomic.Bool               // NVML has not answered yet
	multicastNoted atomic.Bool               // a line has said what multicast does to pauses
	orderTold      atomic.Pointer[string]    // the last reason why a resume could not have its order
	orderFailed    atomic.Pointer[error]     // of the last order that failed
	waitsTold      atomic.Pointer[string]    // the last line of tellWaits
	pollingNoted   sync.Once                 // a line has said which threads must not ask the driver
}

// self is what the functions that C calls work on.
var self = newProcess()

func newProcess() *Process {
	p := &Process{}
	p.socket = server.New(p)
	p.ledger = newLedger(p)
	p.sets.open = map[uint64]*set{}
	p.sets.parts = parts{of: map[uint64]*part{}, held: p.socket.Held()}
	p.pools.torch = torch.New(p.torchSource, isCaptured)
	return p
}

// tmsServe makes the process listen, without waiting for that: a failure is a line on stderr.
//
//export tmsServe
func tmsServe() {
	go func() {
		if err := goruntime.Run(self.socket.Serve); err != nil {
			goruntime.Log(fmt.Sprintf("the process cannot be steered from outside: %v", err))
		}
	}()
}

func (p *Process) Reserve() error {
	wakes := C.int(0)
	if C.region_config.share {
		wakes = 1 // Wake
	}
	if !C.threads_reserve_control(wakes) {
		return cuda.Refuse(cuda.OperatingSystem, "it needs %d more threads, which the process cannot make; "+
			"raise ulimit -u or the pids limit", C.THREADS_OF_CONTROL+wakes)
	}
	return nil
}

// OwnTable leaves the process's own table alone, including the locks on its files. (close_range, Linux 5.9; or unshare)
// Errors: a refusal, after which the thread is as before.
func (p *Process) OwnTable() error {
	err := unix.CloseRange(0, ^uint(0), unix.CLOSE_RANGE_UNSHARE)
	if err == nil {
		return nil
	}
	own := "/proc/thread-self/fd"
	descriptors, unlisted := os.ReadDir(own)
	if unlisted != nil {
		return cuda.Refuse(cuda.OperatingSystem, "a thread cannot have descriptors of its own (close_range: %v; %s: "+
			"%v)", err, own, unlisted)
	}
	if refused := unix.Unshare(unix.CLONE_FILES); refused != nil {
		return cuda.Refuse(cuda.OperatingSystem, "a thread cannot have descriptors of its own "+
			"(close_range, of Linux 5.9: %v; unshare: %v)", err, refused)
	}
	if now, err := os.ReadDir(own); err == nil {
		descriptors = now
	}
	for _, entry := range descriptors {
		if descriptor, err := strconv.Atoi(entry.Name()); err == nil {
			_ = unix.Close(descriptor)
		}
	}
	return nil
}

func (p *Process) SharesTable() (bool, error) {
	const kcmpFiles = 2
	order, _, failed := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(syscall.Gettid()), kcmpFiles, 0, 0, 0)
	if failed != 0 {
		return false, failed
	}
	return order == 0, nil
}

func (p *Process) Directories() (runtime, temporary string) {
	return C.GoString(C.control_environment.runtime_dir), C.GoString(C.control_environment.temporary)
}

func (p *Process) AnyNamespace() bool { return bool(C.region_config.control_any_namespace) }

func (p *Process) State(state *control.ProcessState) (err error) {
	p.checkpoint.asking.RLock()
	defer p.checkpoint.asking.RUnlock()
	if state.Gated = C.gate_unusable() == nil; state.Gated {
		idle := p.idleFor().Seconds()
		state.HeldUp, state.IdleSeconds = bool(C.gate_is_closed()), &idle
	}
	state.ResumeWait = memoryWait().Seconds()
	state.Stats.Version, state.Stats.Devices = C.GoString(C.tms_version()), []stats.Device{}
	state.Kept = p.setsOpen()
	e := p.engine.Load()
	if e != nil {
		if err = goruntime.Room(); err == nil {
			state.Stats, err = p.statsOf(e, C.control_environment.temporary)
		}
		if err == nil { // else a thread that waits in the driver may hold the records
			state.Sharers = e.Shared().Sharers()
		}
	}
	state.Share = p.sharing(state.Share)
	var asked *cuda.Driver
	if e != nil && !C.checkpoint_asked() { // else there is no driver, or its calls would wait
		asked = p.driver
	}
	state.Devices = watch.Devices(asked)
	state.Account = watch.Account(asked, state.Devices)
	if C.checkpoint_asked() {
		state.Devices = append(state.Devices, p.checkpoint.devicesBefore...)
		state.Driver = p.checkpoint.driver.Load()
	}
	state.Stays = p.stays()
	return err
}

func (p *Process) Lend(share uint64, to server.Importer) (descriptor int, reply control.Reply, err error) {
	e := p.engine.Load()
	if e == nil {
		return -1, reply, vmm.ErrShareGone
	}
	// Read first: a pause that has ended since has not left the program stopped.
	stopped := control.Reply{Stopped: bool(C.gate_is_closed())}
	if C.checkpoint_asked() {
		return -1, stopped, vmm.ErrSharePaused
	}
	lent, err := e.Shared().Export(share, vmm.Importer(to))
	if err != nil {
		return -1, stopped, err
	}
	return lent.Descriptor, control.Reply{Bytes: lent.Size, Extent: lent.Extent, Offset: lent.Offset,
		Tag: stats.TagText(lent.Tag), Device: lent.Device}, err
}

func (p *Process) Returned(share uint64, by server.Importer) {
	if e := p.engine.Load(); e != nil {
		e.Shared().Returned(share, by.PID, by.Number)
	}
}

func (p *Process) Hand(work func() error, done func(error)) {
	goruntime.Hand(func() { done(goruntime.Run(work)) })
}

func (p *Process) Log(err error) {
	if panicked := (*guard.Panic)(nil); errors.As(err, &panicked) {
		go goruntime.LogPanic(err)
	} else {
		go goruntime.Log(err.Error())
	}
}

func (p *Process) Bound(path string, device, inode uint64) {
	C.control_bound((*C.char)(goruntime.Terminated(path)), C.dev_t(device), C.ino_t(inode))
}

func (p *Process) Note(part control.Driver) { p.checkpoint.driver.Store(&part) }

func (p *Process) SetPending(now bool) { C.checkpoint_set_pending(C.bool(now)) }

func (p *Process) Awaited() bool { return !bool(C.gate_is_closed()) || bool(C.gate_is_waited_for()) }

func (p *Process) Unalign() { C.nccl_release() }

// EndRecording ignores that the recording had ended before: stderr has the reason.
func (p *Process) EndRecording(which int) {
	goruntime.Hand(func() { _ = goruntime.Run(func() error { return watch.StopRecording(which) }) })
}
