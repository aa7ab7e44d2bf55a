package torch_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/torch"
)

const (
	mib   = 1 << 20
	total = 64 << 30
)

// source has addresses of its own, and streams that finish their work at once.
type source struct {
	*pool.Range
	refuseFree error
}

func (s *source) Free(address uintptr, size uint64) error {
	if s.refuseFree != nil {
		return s.refuseFree
	}
	return s.Range.Free(address, size)
}

func (*source) Reserve(*pool.Room) bool     { return true }
func (*source) Coalesces(_, _ uintptr) bool { return true }

func (*source) Memory() (free, all uint64, err error)  { return total, total, nil }
func (*source) Record(pool.Stream) (pool.Event, error) { return 1, nil }
func (*source) Query(pool.Event) (bool, error)         { return true, nil }
func (*source) Synchronize(pool.Event) error           { return nil }
func (*source) Destroy(pool.Event) error               { return nil }
func pausable(device int, tag string) torch.Memory     { return memory(device, true, tag) }
func plain(device int) torch.Memory                    { return memory(device, false, "") }
func memory(device int, on bool, tag string) torch.Memory {
	return torch.Memory{Device: device, Pausable: on, Request: vmm.Request{Device: device, Tag: tag}}
}

// machine has the sources that were asked for, and the streams that are being captured.
type machine struct {
	mu       sync.Mutex
	sources  map[torch.Memory]*source
	captured map[pool.Stream]bool
	refuse   error
}

func (m *machine) source(of torch.Memory) (pool.DeviceSource, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	if m.sources[of] != nil {
		return nil, errors.New("a second source of the same memory")
	}
	m.sources[of] = &source{Range: pool.NewRange(0x7f00_0000_0200+uintptr(len(m.sources))*total, total)}
	return m.sources[of], nil
}

func (m *machine) isCaptured(stream pool.Stream) bool { return m.captured[stream] }

func newPools(t *testing.T, kind string) (*torch.Pools, *machine) {
	t.Helper()
	m := &machine{sources: map[torch.Memory]*source{}, captured: map[pool.Stream]bool{}}
	p := torch.New(m.source, m.isCaptured)
	if kind != "" {
		require.NoError(t, p.Use(kind, ""))
	}
	return p, m
}

func malloc(t *testing.T, p *torch.Pools, m torch.Memory, stream pool.Stream) uintptr {
	t.Helper()
	block, err := p.Malloc(m, mib, stream)
	require.NoError(t, err)
	require.NotZero(t, block.Address)
	return block.Address
}

func trim(t *testing.T, p *torch.Pools) {
	t.Helper()
	_, err := p.Trim()
	require.NoError(t, err)
}

func TestChoice(t *testing.T) {
	p, _ := newPools(t, "")
	_, err := p.Malloc(plain(0), mib, 0)
	require.ErrorIs(t, err, torch.ErrNotChosen)
	require.ErrorIs(t, p.Use("", ""), pool.ErrOption)
	require.ErrorIs(t, p.Use("heap", ""), pool.ErrOption)
	require.ErrorIs(t, p.Use("naive", "no_such_option=1"), pool.ErrOption)
	require.ErrorIs(t, p.Use("naive", "="), pool.ErrOption)
	_, err = p.Malloc(plain(0), mib, 0)
	require.ErrorIs(t, err, torch.ErrNotChosen, "what was refused is no choice")
	require.NoError(t, p.Use("naive", ""))
	require.NoError(t, p.Use("naive", ""), "the same again")
	require.ErrorIs(t, p.Use("bfc", ""), torch.ErrChosen)
	require.ErrorIs(t, p.Use("", ""), torch.ErrChosen)
}

// Requests that differ only in what each allocation says have one kind of memory.
func TestAPoolForEachKindOfMemory(t *testing.T) {
	p, m := newPools(t, "naive")
	kept := pausable(0, "t")
	kept.Request.Backup = vmm.BackupHost
	for _, memory := range []torch.Memory{plain(0), plain(1), pausable(0, "t"), pausable(0, "u"), kept} {
		malloc(t, p, memory, 0)
		of := memory
		of.Request.Size, of.Request.Margin, of.Request.Capturing, of.Request.Context = 5, 6, true, 7
		malloc(t, p, of, 0)
		require.Equal(t, 2, m.sources[memory].Held())
	}
	require.Len(t, m.sources, 5)
	tags := []string{}
	for _, s := range p.Stats() {
		require.EqualValues(t, 2, s.Stats.Blocks)
		require.Equal(t, "naive", s.Stats.Kind)
		tag := "none"
		if s.Tag != nil {
			tag = *s.Tag
		}
		tags = append(tags, tag)
	}
	require.Equal(t, []string{"none", "none", "t", "u", "t"}, tags)
	for i, s := range p.Snapshots() {
		require.Len(t, s.Segments, 2)
		require.Equal(t, []any{p.Stats()[i].Device, p.Stats()[i].Tag}, []any{s.Device, s.Tag})
	}
}

func TestASourceThatCannotBeMade(t *testing.T) {
	p, m := newPools(t, "naive")
	m.refuse = errors.New("no such device")
	_, err := p.Malloc(plain(9), mib, 0)
	require.ErrorIs(t, err, m.refuse)
	require.Empty(t, p.Stats())
	m.refuse = nil
	malloc(t, p, plain(9), 0)
}

func TestFindsWhoseItIs(t *testing.T) {
	for _, kind := range kinds.Names() {
		p, _ := newPools(t, kind)
		require.ErrorIs(t, p.Free(0x1000), pool.ErrInvalidAddress)
		first, second := malloc(t, p, plain(0), 0), malloc(t, p, plain(1), 0)
		require.NotEqual(t, first, second)
		require.NoError(t, p.RecordStream(second, 3))
		require.NoError(t, p.Free(second))
		require.ErrorIs(t, p.Free(second), pool.ErrInvalidAddress, kind)
		require.ErrorIs(t, p.RecordStream(second, 3), pool.ErrInvalidAddress, kind)
		require.NoError(t, p.Free(first))
	}
}

func TestTrim(t *testing.T) {
	p, m := newPools(t, "caching")
	trim(t, p)
	for device := range 2 {
		require.NoError(t, p.Free(malloc(t, p, plain(device), 0)))
	}
	refusal := errors.New("the driver is gone")
	m.sources[plain(0)].refuseFree = refusal
	freed, err := p.Trim()
	require.ErrorIs(t, err, refusal)
	require.NotZero(t, freed)
	require.Zero(t, m.sources[plain(1)].Held(), "the others are still trimmed")
	m.sources[plain(0)].refuseFree = nil
	trim(t, p)
	require.Zero(t, m.sources[plain(0)].Held())
}

// A limit also holds for pools that are made later, but only on its device.
func TestMemoryFraction(t *testing.T) {
	for _, kind := range []string{"caching", "naive"} {
		p, _ := newPools(t, kind)
		malloc(t, p, plain(0), 0)
		require.ErrorIs(t, p.SetMemoryFraction(0, 2), pool.ErrOption)
		malloc(t, p, plain(0), 0)
		require.NoError(t, p.SetMemoryFraction(0, 0))
		for _, memory := range []torch.Memory{plain(0), pausable(0, "t")} {
			_, err := p.Malloc(memory, 64*mib, 0)
			require.ErrorIs(t, err, pool.ErrOutOfMemory, kind)
		}
		malloc(t, p, plain(1), 0)
		require.NoError(t, p.SetMemoryFraction(0, 1))
		malloc(t, p, plain(0), 0)
		malloc(t, p, pausable(0, "t"), 0)
	}
}

// Memory that is allocated during a capture belongs to the graph until that is gone, even in pools that are made during
// the capture.
func TestGraphs(t *testing.T) {
	for _, kind := range []string{"caching", "naive"} {
		p, m := newPools(t, kind)
		id := pool.GraphPoolID{0, 42}
		before := malloc(t, p, plain(0), 5)
		require.NoError(t, p.BeginAllocateToPool(0, id))
		m.captured[5] = true
		inside, late := malloc(t, p, plain(0), 5), malloc(t, p, pausable(0, "late"), 5)
		require.NoError(t, p.Free(inside))
		require.NoError(t, p.Free(late))
		trim(t, p) // captures are passed over
		m.captured[5] = false
		require.NoError(t, p.EndAllocateToPool(0, id))
		require.ErrorIs(t, p.EndAllocateToPool(0, id), pool.ErrGraphPool)
		trim(t, p)
		require.NotZero(t, m.sources[pausable(0, "late")].Held(), kind)
		after := malloc(t, p, plain(0), 5)
		require.NotEqual(t, inside, after, kind)

		malloc(t, p, pausable(0, "later"), 5) // its pool does not know the graph
		require.NoError(t, p.ReleasePool(0, id))
		trim(t, p)
		require.Zero(t, m.sources[pausable(0, "late")].Held(), kind)
		require.NoError(t, p.Free(before))
		require.NoError(t, p.Free(after))
	}
}

func TestManyThreads(t *testing.T) {
	p, m := newPools(t, "bfc")
	var done sync.WaitGroup
	for thread := range 4 {
		done.Go(func() {
			for step := range 200 {
				block, err := p.Malloc(plain(step%3), mib, pool.Stream(thread))
				if err == nil {
					err = p.Free(block.Address)
				}
				if err != nil {
					t.Error(err)
					return
				}
				p.Stats()
			}
		})
	}
	done.Wait()
	require.Len(t, m.sources, 3)
}
