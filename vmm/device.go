package vmm

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"tms/internal/aid/backoff"
	"tms/vmm/contexts"
	"tms/vmm/cuda"
	"tms/vmm/quota"
	"tms/vmm/space"
)

// device is what the engine knows of one GPU.
type device struct {
	driver         *cuda.Driver
	ordinal        int
	context        cuda.Context // the primary one, retained for good
	granularity    uint64
	total          uint64
	rdma           bool        // memory can be made usable for GPUDirect RDMA, as cudaMalloc's is
	onHost         bool        // its memory is the host's
	savesElsewhere atomic.Bool // so contents are saved elsewhere than was asked
	shareable      atomic.Bool // new memory can be exported to other processes, as file descriptors
	shares         atomic.Bool // such memory was made
	tags           map[string]*tag
	space          *space.Space[segment]
	uuid           string                // "": the driver does not report it
	near           map[string]int        // the peers, by UUID
	node           atomic.Int64          // NUMA node of the nearest host memory, or -1
	peers          atomic.Pointer[[]int] // devices that could have access to its memory
	users          *contexts.Users       // which of the peers are used
	quota          *quota.Device         // what the process has of it
	ordered        ordered               // memory for stream order
	unused         []cuda.Event          // that no line needs any longer
	made           uint64                // pending frees so far
	progressing    int                   // pending frees in progress
	wanting        int                   // callers for whom its memory is short
	waiting        bool                  // a thread waits for its contexts, for pending frees
	hashed         atomic.Bool           // the hash has been used
	streamed       atomic.Bool           // the driver has had to make streams
	progress       atomic.Pointer[progress]
	gated          int               // segments that are paused by a gated pause
	exposed        int               // segments that are paused by another
	shared         uint64            // bytes of extents that several segments share, or have shared
	woken          map[*segment]bool // slabs that wakeSlab has made active, and whose contents are still saved
}

func newDevice(driver *cuda.Driver, ordinal int) (*device, error) {
	handle, err := driver.DeviceGet(ordinal)
	if err != nil {
		return nil, err
	}
	supported, err := driver.DeviceAttribute(cuda.AttributeVirtualMemoryManagementSupported, handle)
	if err != nil {
		return nil, err
	}
	if supported == 0 {
		return nil, fmt.Errorf("device %d has no virtual memory management%.0w", ordinal, cuda.NotSupported)
	}
	d := &device{driver: driver, ordinal: ordinal, users: contexts.NewUsers(ordinal), tags: map[string]*tag{},
		woken: map[*segment]bool{}}
	rdma, err := driver.DeviceAttribute(cuda.AttributeGPUDirectRDMAWithVMMSupported, handle)
	d.rdma = err == nil && rdma != 0 // older drivers do not know the attribute
	files, err := driver.DeviceAttribute(cuda.AttributeHandleTypeFileSupported, handle)
	d.shareable.Store(err == nil && files != 0) // WSL has none
	d.onHost = driver.SharesHostMemory(handle)
	if d.total, err = driver.DeviceTotalMem(handle); err != nil {
		return nil, err
	}
	if d.granularity, err = driver.MemGetAllocationGranularity(ordinal); err != nil {
		return nil, err
	}
	if d.context, err = driver.DevicePrimaryCtxRetain(handle); err != nil {
		return nil, err
	}
	d.quota = quota.New(driver, d.context, d.granularity, d.total)
	d.uuid, d.near = d.findPlace()
	return d, nil
}

// findPlace finds out what changes when the process moves to another GPU, and returns the UUIDs.
func (d *device) findPlace() (uuid string, near map[string]int) {
	node, err := d.driver.DeviceAttribute(cuda.AttributeHostNUMAID, cuda.Device(d.ordinal))
	if err != nil {
		node = -1 // drivers before CUDA 12.2 do not know the attribute
	}
	d.node.Store(int64(node))
	peers := d.findPeers()
	d.peers.Store(&peers)
	near = map[string]int{}
	for _, peer := range peers {
		if uuid, err := d.driver.DeviceUUID(cuda.Device(peer)); err == nil {
			near[uuid] = peer
		}
	}
	if uuid, err = d.driver.DeviceUUID(cuda.Device(d.ordinal)); err != nil {
		uuid = ""
	}
	return uuid, near
}

// FindPlaces finds out again which GPUs the devices are: call it when the driver may have moved the process. A call
// that fails loses what it would have found.
func (e *Engine) FindPlaces() {
	for _, d := range e.known() {
		uuid, near := d.findPlace()
		e.mu.Lock()
		d.uuid, d.near = uuid, near
		e.mu.Unlock()
	}
}

// DeviceNames lists the names of all devices, by ordinal. (cuDeviceGetName)
func (r Records) DeviceNames() ([]string, error) {
	e := r.engine
	count, err := e.driver.DeviceCount()
	names := make([]string, count)
	for ordinal := range names {
		var device cuda.Device
		if device, err = e.driver.DeviceGet(ordinal); err == nil {
			names[ordinal], err = e.driver.DeviceName(device)
		}
		if err != nil {
			return nil, err
		}
	}
	return names, err
}

// device returns what is known about a device. The caller holds e.mu.
func (e *Engine) device(ordinal int) (*device, error) {
	if d := e.devices[ordinal]; d != nil {
		return d, nil
	}
	d, err := newDevice(e.driver, ordinal)
	if err == nil {
		d.space = e.space
		if !e.shareable {
			d.shareable.Store(false)
		}
		e.devices[ordinal] = d
	}
	return d, err
}

// Include makes the statistics have a device of which nothing is pausable yet. Errors: *cuda.Error.
func (e *Engine) Include(ordinal int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.device(ordinal)
	return err
}

// known lists the devices.
func (e *Engine) known() []*device {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.devices))
}

func (d *device) findPeers() (peers []int) {
	count, err := d.driver.DeviceCount()
	if err != nil {
		return nil
	}
	for peer := range count {
		if peer == d.ordinal {
			continue
		}
		if can, err := d.driver.DeviceCanAccessPeer(cuda.Device(peer), cuda.Device(d.ordinal)); err == nil && can {
			peers = append(peers, peer)
		}
	}
	return peers
}

// streams is the number of streams that a pause or resume uses at once, plus some that the program may make then.
const streams = 16

// Admit refuses, as Malloc does, a caller in a context that the engine could not wait for; current is that context, 0
// if it is not known. Errors: ErrContext, *cuda.Error. (cuCtxGetCurrent, cuCtxSetCurrent)
func (e *Engine) Admit(ordinal int, current cuda.Context) error {
	e.mu.Lock()
	d, err := e.device(ordinal)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return e.contexts.Admit(d.context, current)
}

// AwaitIdle waits until all contexts of all devices have done their work, as long as the program gives them no more. It
// polls instead of waiting in the driver, so that it can give up: it then returns the device that has not finished,
// else -1. Errors: ErrCapturing, *cuda.Error. (cuCtxRecordEvent, cuEventQuery, cuCtxSynchronize)
func (e *Engine) AwaitIdle(until time.Time) (busy int, err error) { return e.contexts.AwaitIdle(until) }

// AwaitAllocations waits until the driver has made the memory that it has been asked for so far, but not beyond until. A
// thread that allocates may be past the gate, and what it gets after a pause would stay active. What is asked for later
// is not waited for: another thread may allocate without end.
func (e *Engine) AwaitAllocations(until time.Time) {
	last := map[*device]uint64{} // requests
	e.mu.Lock()
	for _, d := range e.devices {
		last[d] = d.quota.Last()
	}
	e.mu.Unlock()
	making := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for d, request := range last {
			if d.quota.Waits(request) {
				return true
			}
		}
		return false
	}
	for wait := (backoff.Backoff{Next: firstLook, Most: 200 * time.Microsecond}); making() && wait.Sleep(until); {
	}
}
