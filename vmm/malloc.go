package vmm

import (
	"errors"
	"fmt"

	"tms/internal/aid/guard"
	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/space"
)

// Request is an allocation to make.
type Request struct {
	Size   uint64 // bytes
	Device int    // CUDA ordinal
	Tag    string
	Backup BackupKind
	// Incremental, of BackupHost: the next pauses copy only blocks whose contents have changed, so the
	// host copy stays from one to the next.
	Incremental bool
	Target      int          // of BackupPeer: the ordinal of the device that keeps contents, or -1 for any
	Margin      uint64       // bytes of device memory that must stay free
	Reserve     bool         // stats.Reserve must stay free, too
	Context     cuda.Context // current in the calling thread, or 0 if there is none or it is unknown
	Limit       uint64       // bytes that the process may have of the device, paused or not, or 0 for no limit
	Capturing   bool         // a stream of the process is being captured
	Prompt      bool         // a resume or free waits, however long, until the host memory that it gives up is back
	Room        *space.Room  // addresses where some segments lie side by side, or nil for any of the tag's
	Ordered     bool         // the memory is used in the order of a stream, as cudaMallocAsync's is:
	Stream      cuda.Stream
	Keep        uint64     // the release threshold: unused bytes for stream order that stay mapped
	Repeated    Repeated   // nil if the memory is not offered
	order       cuda.Order // of it
}

// Malloc makes an active segment, or for less than a granule a part of one, on the calling thread, and returns its
// address, or 0 for no bytes. Like cudaMalloc it leaves the device's primary context current in a thread that had none.
// Addresses are aligned to 512 bytes. Errors: ErrTooLarge, ErrMargin, ErrLimit, ErrContext, *cuda.Error. (cuMemCreate,
// cuMemMap, cuMemSetAccess)
func (e *Engine) Malloc(r Request) (address uintptr, err error) {
	defer e.audit(&err)
	if r.Size == 0 {
		return 0, nil
	}
	if r.Ordered {
		r.order = cuda.OrderOf(e.driver, r.Stream)
	}
	err = e.obtain(&r, "allocating", func(d *device, short bool) (err error) {
		address, err = e.allocate(d, &r, short)
		return err
	})
	if err != nil {
		return 0, err
	}
	return address, nil
}

// obtain makes memory of a device, by take, which is called with e.mu and may release it. It tries again when memory
// was short while frees that callers believe done were pending, when slack can be given back, and when the device was
// reset. doing names the purpose in errors.
func (e *Engine) obtain(r *Request, doing string, take func(d *device, short bool) error) error {
	for {
		var made uint64
		d, err := e.obtainAtOnce(r, &made, take)
		if d == nil {
			return err
		}
		again := func() error {
			e.lockFor(r)
			defer e.mu.Unlock()
			return take(d, true)
		}
		if isShort(err) && r.Ordered {
			err = again()
		}
		if isShort(err) && !r.Capturing {
			err = e.awaitFrees(d, again, &made, err)
		}
		if isShort(err) && !r.Capturing && e.MakeRoom(r.Device) {
			err = again()
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errReset) {
			err = fmt.Errorf("%s %s on device %d: %w%s", doing, readable.Bytes(r.Size), r.Device, err,
				e.slackNote(d, err))

			// A program often reports CUDA's code alone, so the first refusal of the limit on a device is said.
			e.mu.Lock()
			if isShort(err) && r.Size <= d.total {
				d.quota.Most = max(d.quota.Most, d.quota.Has+r.Size)
			}
			first := false
			if errors.Is(err, ErrLimit) {
				d.quota.Refused++
				first = d.quota.Refused == 1
			}
			e.mu.Unlock()
			if first {
				e.process.Warn(err.Error() + " (said once; tms ps counts the others)")
			}
			return err
		}
	}
}

// obtainAtOnce is the first try. It returns no device where none can be asked for memory. The lock is taken only once
// for a thread in the device's primary context.
func (e *Engine) obtainAtOnce(r *Request, made *uint64, take func(d *device, short bool) error) (*device, error) {
	e.lockFor(r)
	defer e.mu.Unlock()
	d, err := e.device(r.Device)
	if err != nil {
		return nil, err
	}
	*made = d.made
	if r.Context != d.context {
		e.mu.Unlock()
		err := guard.Call(func() error { return e.contexts.Admit(d.context, r.Context) })
		e.lockFor(r) // unlike unlocked, which would end the offers of live memory
		if err != nil {
			return nil, err
		}
	}

	// A copy in host memory would take what a pause frees, where the device's memory is the host's.
	if d.onHost && (r.Backup == BackupHost || r.Backup == BackupSparse) {
		r.Backup, r.Incremental = BackupDisk, false
		d.savesElsewhere.Store(true)
	}
	return d, take(d, false)
}
