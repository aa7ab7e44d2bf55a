package source

import (
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/space"
)

// State is what a source needs to know of the process at each call.
type State struct {
	Capturing bool   // a stream is being captured
	Margin    uint64 // bytes of device memory that must stay free
}

// Segments is a pool.DeviceSource of pausable segments: its memory is paused and resumed with its tag. Blocks, free
// ones too, keep their addresses over a pause. A block allocated while the tag is paused is usable after the resume.
type Segments struct {
	device
	engine  *vmm.Engine
	request vmm.Request
	state   func() State
}

// NewSegments makes a source of segments as in the request, except for their size and what state returns. Errors:
// *cuda.Error if there is no such device.
func NewSegments(engine *vmm.Engine, driver *cuda.Driver, request vmm.Request, state func() State) (*Segments, error) {
	d, err := newDevice(driver, request.Device)
	if err != nil {
		return nil, err
	}
	return &Segments{device: d, engine: engine, request: request, state: state}, nil
}

// Memory is pool.Memory.Memory: with a limit, what the program may have.
func (s *Segments) Memory() (free, total uint64, err error) {
	free, total, err = s.device.Memory()
	if limit := s.request.Limit; limit > 0 {
		has := s.engine.Records().Has(s.ordinal)
		free, total = min(free, limit-min(limit, has)), min(total, limit)
	}
	return free, total, err
}

func (s *Segments) Allocate(size uint64) (uintptr, error) {
	state := s.state()
	r := s.request
	r.Size, r.Capturing, r.Margin = size, state.Capturing, state.Margin
	address, err := s.engine.Malloc(r)
	return address, s.outOfMemory(size, state.Margin, err)
}

// Reserve is pool.Coalescer.Reserve. (cuMemAddressReserve)
func (s *Segments) Reserve(room *pool.Room) bool {
	s.request.Room = (*space.Room)(room)
	return true
}

// Coalesces is pool.Coalescer.Coalesces: to the driver, neighbouring mappings in one reservation are one range.
func (s *Segments) Coalesces(below, above uintptr) bool { return s.engine.OneReservation(below, above) }

// Free is pool.Source.Free. During a capture the memory is freed at the capture's end.
func (s *Segments) Free(address uintptr, _ uint64) error {
	return s.engine.Free(address, s.state().Capturing)
}
