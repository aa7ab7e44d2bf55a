package kinds_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"tms/vmm/pool"
)

// Checked compares a pool with a model after every call. It passes the pool's results on and keeps a wrong one for
// Violation. It has no lock.
type Checked struct {
	pool   pool.Pool
	source *Source
	traits Traits

	live      []span
	requested map[uintptr]uint64
	want      pool.Stats // the model's; the source counts its part itself
	got       pool.Stats // the pool's last
	violation error
	calls     int
}

// snapshotEach is how many calls there are between two looks at a snapshot, which has all blocks.
const snapshotEach = 50

// Check returns a Checked of an empty pool over its source.
func Check(p pool.Pool, source *Source, traits Traits) *Checked {
	c := &Checked{pool: p, source: source, traits: traits, requested: map[uintptr]uint64{}}
	c.compare("New")
	return c
}

// Violation returns the first thing that the pool did wrong.
func (c *Checked) Violation() error { return c.violation }

func (c *Checked) fail(call, format string, arguments ...any) {
	if c.violation == nil {
		c.violation = fmt.Errorf("%s: %w", call, fmt.Errorf(format, arguments...))
	}
}

func (c *Checked) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	call := fmt.Sprintf("Malloc(%d, %d)", size, stream)
	refused := c.source.refused
	block, err := c.pool.Malloc(size, stream)
	switch {
	case err != nil:
		c.want.Failures++
		if block != (pool.Block{}) {
			c.fail(call, "a block beside the error: %+v", block)
		}
		c.refusal(call, size, err, c.source.refused > refused)
	case size == 0:
		if block != (pool.Block{}) {
			c.fail(call, "size 0 got a block: %+v", block)
		}
	default:
		c.enter(call, block, size)
	}
	c.compare(call)
	return block, err
}

// refusal checks the error of a Malloc.
func (c *Checked) refusal(call string, size uint64, err error, sourceRefused bool) {
	tooLarge := c.traits.Largest > 0 && size > c.traits.Largest
	switch {
	case tooLarge && !errors.Is(err, pool.ErrTooLarge):
		c.fail(call, "not ErrTooLarge: %w", err)
	case !tooLarge && errors.Is(err, pool.ErrTooLarge) && size <= c.source.capacity:
		c.fail(call, "sizes up to %d are served: %w", c.traits.Largest, err)
	case errors.Is(err, pool.ErrTooLarge):
	case c.source.Refuse != nil && !errors.Is(err, c.source.Refuse):
		c.fail(call, "not what the source answered: %w", err)
	case c.source.Refuse == nil && !errors.Is(err, pool.ErrOutOfMemory):
		c.fail(call, "not ErrOutOfMemory: %w", err)
	case !sourceRefused && size <= c.source.capacity:
		c.fail(call, "the source had not refused: %w", err)
	}
}

func (c *Checked) enter(call string, block pool.Block, size uint64) {
	s := span{uint64(block.Address), block.Size}
	switch {
	case block.Size < size:
		c.fail(call, "a block of %d bytes", block.Size)
	case c.traits.Largest > 0 && size > c.traits.Largest:
		c.fail(call, "served, although %d is the largest size", c.traits.Largest)
	case uint64(block.Address)%c.traits.Alignment != 0:
		c.fail(call, "%#x is not aligned to %d", block.Address, c.traits.Alignment)
	case !within(c.source.held, s, c.source.across):
		c.fail(call, "%d bytes at %#x are in no segment", block.Size, block.Address)
	case overlaps(c.live, s):
		c.fail(call, "%d bytes at %#x overlap a live block", block.Size, block.Address)
	}
	c.live = insert(c.live, s)
	c.requested[block.Address] = size
	w := &c.want
	w.Mallocs++
	w.Blocks++
	w.Requested += size
	w.Live += block.Size
	w.PeakRequested = max(w.PeakRequested, w.Requested)
	w.PeakLive = max(w.PeakLive, w.Live)
}

func (c *Checked) Free(address uintptr) error {
	call := fmt.Sprintf("Free(%#x)", address)
	i, isLive := find(c.live, uint64(address))
	refused, before := c.source.refused, c.got
	err := c.pool.Free(address)
	switch {
	case !isLive && address == 0 && err != nil:
		c.fail(call, "address 0 is ignored: %w", err)
	case !isLive && address != 0 && !errors.Is(err, pool.ErrInvalidAddress):
		c.fail(call, "not ErrInvalidAddress, although not live: %v", err)
	case !isLive && address != 0 && !strings.Contains(err.Error(), fmt.Sprintf("%#x", address)):
		c.fail(call, "the error does not name the address: %w", err)
	case isLive && err != nil && c.source.refused == refused:
		c.fail(call, "refused, although live: %w", err)
	case isLive && err == nil:
		c.want.Frees++
		c.want.Blocks--
		c.want.Live -= c.live[i].size
		c.want.Requested -= c.requested[address]
		c.live = remove(c.live, i)
		delete(c.requested, address)
	}
	c.compare(call)
	if !isLive && !reflect.DeepEqual(before, c.got) {
		c.fail(call, "nothing was live there, yet %+v became %+v", before, c.got)
	}
	return err
}

func (c *Checked) Trim() (uint64, error) {
	refused, reserved := c.source.refused, c.source.reserved
	freed, err := c.pool.Trim()
	if gone := reserved - c.source.reserved; freed != gone {
		c.fail("Trim", "returned %d, but gave back %d bytes", freed, gone)
	}
	c.givenBack("Trim", refused, err)
	c.compare("Trim")
	return freed, err
}

// Destroy is pool.Pool.Destroy. All blocks end, even if the source refuses.
func (c *Checked) Destroy() error {
	refused := c.source.refused
	err := c.pool.Destroy()
	c.live = nil
	clear(c.requested)
	// Kinds may or may not count the blocks that it ends as frees.
	if frees := c.pool.Stats().Frees; frees == c.want.Frees+c.want.Blocks {
		c.want.Frees = frees
	}
	c.want.Blocks, c.want.Live, c.want.Requested = 0, 0, 0
	c.givenBack("Destroy", refused, err)
	c.compare("Destroy")
	return err
}

// givenBack checks that an idle segment is left only if the source refused one, and that the error says so.
func (c *Checked) givenBack(call string, refused uint64, err error) {
	if c.source.refused > refused {
		if err == nil {
			c.fail(call, "no error, although the source refused a segment")
		}
		return
	}
	if err != nil {
		c.fail(call, "the source refused nothing: %w", err)
	}
	for _, s := range c.source.held {
		if !overlaps(c.live, s) {
			c.fail(call, "kept the segment of %d bytes at %#x, in which nothing is live", s.size, s.start)
			return
		}
	}
}

func (c *Checked) Stats() pool.Stats {
	c.compare("Stats")
	return c.got
}

// compare checks all counters.
func (c *Checked) compare(call string) {
	if c.source.wrong != nil {
		c.fail(call, "%w", c.source.wrong)
	}
	before := c.got.SourceFailures
	c.got = c.pool.Stats()
	want, got := c.want, c.got
	want.Kind = c.traits.Kind
	want.Segments, want.Reserved = uint64(len(c.source.held)), c.source.reserved
	want.PeakReserved = c.source.peak
	want.SourceMallocs, want.SourceFrees = c.source.allocated, c.source.freed
	// A pool need not count a refusal that does not matter to it.
	if got.SourceFailures < before || got.SourceFailures > c.source.refused {
		c.fail(call, "%d failures of the source, after %d, of %d", got.SourceFailures, before, c.source.refused)
	}
	want.SourceFailures, got.Detail = got.SourceFailures, nil
	if want != got {
		c.fail(call, "the statistics are\n%+v, not\n%+v", got, want)
	}
	if c.calls++; c.calls%snapshotEach == 0 {
		c.compareSnapshot(call)
	}
}

// compareSnapshot checks that a snapshot has every byte of the source's segments and every live block once.
func (c *Checked) compareSnapshot(call string) {
	var reserved uint64
	var live []span
	end := uintptr(0)
	for _, s := range c.pool.Snapshot() {
		if s.Address < end {
			c.fail(call, "a snapshot is not in order at %#x", s.Address)
		}
		at, sums := s.Address, [3]uint64{}
		for _, b := range s.Blocks {
			if b.Address != at || b.Size == 0 || (b.State == pool.Inactive) != (b.Requested == 0) {
				c.fail(call, "a snapshot has a block %+v at %#x", b, at)
			}
			at += uintptr(b.Size)
			if b.State == pool.Inactive {
				continue
			}
			live = append(live, span{uint64(b.Address), b.Size})
			sums[0] += b.Size
			sums[1] += b.Size
			sums[2] += b.Requested
			if b.Requested != c.requested[b.Address] {
				c.fail(call, "a snapshot has %d bytes requested at %#x", b.Requested, b.Address)
			}
		}
		if end = s.Address + uintptr(s.Size); at != end || sums != [3]uint64{s.Allocated, s.Active, s.Requested} {
			c.fail(call, "a snapshot has a segment %+v", s)
		}
		reserved += s.Size
	}
	if reserved != c.source.reserved || !slices.Equal(live, c.live) {
		c.fail(call, "a snapshot has %d bytes with blocks %v, not %d with %v", reserved, live, c.source.reserved, c.live)
	}
}
