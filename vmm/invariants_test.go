package vmm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// Every kind of contradiction is found, and an operation returns it.
func TestInvariants(t *testing.T) {
	t.Setenv("CUDASIM_DEVICES", "1")
	sim := cudasim.Start(t)
	driver, err := cuda.Open(sim.Path)
	require.NoError(t, err)
	e := NewOn(driver)
	e.CheckInvariants(true)
	const granule = 2 << 20
	var addresses []uintptr
	for _, size := range []uint64{granule, granule, 2 * granule, 100, 700} {
		address, err := e.Malloc(Request{Size: size, Tag: "t"})
		require.NoError(t, err)
		addresses = append(addresses, address)
	}
	o := Options{ExtentBytes: 1 << 30}
	_, err = e.Pause(o)
	require.NoError(t, err)
	_, err = e.Resume(o)
	require.NoError(t, err)
	require.NoError(t, e.Free(addresses[0], false))
	tag := e.devices[0].tags["t"]
	s := e.segmentAt(addresses[1])
	small := e.segmentAt(addresses[3])
	free := tag.slack.Find(1, nil, func(*segment) bool { return true })
	for name, damage := range map[string]func() (repair func()){
		"index":     func() func() { s.index++; return func() { s.index-- } },
		"tag":       func() func() { s.tag = s.device.newTag("u"); return func() { s.tag = tag } },
		"busy":      func() func() { s.owner = aTransition; return func() { s.owner = nobody } },
		"paused":    func() func() { s.state = paused; return func() { s.state = active } },
		"no memory": func() func() { x := s.extent; s.extent = nil; return func() { s.extent = x } },
		"address":   func() func() { s.address += granule; return func() { s.address -= granule } },
		"leaf":      func() func() { s.span.Enter(nil); return func() { s.span.Enter(s) } },
		"ghost":     func() func() { free.span.Enter(s); return func() { free.span.Enter(nil) } },
		"live":      func() func() { s.extent.live++; return func() { s.extent.live-- } },
		"size":      func() func() { s.extent.Size++; return func() { s.extent.Size-- } },
		"closed":    func() func() { s.extent.Step = mapping.Mapped; return func() { s.extent.Step = mapping.Accessible } },
		"created":   func() func() { s.extent.Step = mapping.None; return func() { s.extent.Step = mapping.Accessible } },
		"slack":     func() func() { free.state = active; return func() { free.state = slack } },
		"slab": func() func() {
			other := *small.slab // of the same groups
			offset, _ := other.Allocate(1)
			return func() { other.Free(offset) }
		},
		"listed": func() func() { at := small.shelved; small.shelved = s.shelved; return func() { small.shelved = at } },
		"deferred": func() func() {
			f := &pendingFree{allocation: allocation{segment: s}}
			e.pending.at[unwaited].add(f)
			return func() { e.pending.at[unwaited].remove(f) }
		},
	} {
		require.NoError(t, e.inspect(), "before %s", name)
		repair := damage()
		_, err := e.Malloc(Request{})
		require.ErrorIs(t, err, ErrInvariant, name)
		repair()
	}
	var warned string
	HostOf(e).SetWarn(func(line string) { warned = line })
	s.extent.live++
	e.Trim()
	require.Contains(t, warned, ErrInvariant.Error())
	e.CheckInvariants(false)
	_, err = e.Malloc(Request{})
	require.NoError(t, err)
	s.extent.live--
	for _, address := range addresses[1:] {
		require.NoError(t, e.Free(address, false))
	}
	require.NoError(t, e.inspect())
	// What the space finds is found as well.
	for range 2 {
		address, err := e.Malloc(Request{Size: granule, Tag: "t"})
		require.NoError(t, err)
		addresses = append(addresses, address)
	}
	e.segmentAt(addresses[5]).span.Release()
	require.ErrorContains(t, e.inspect(), "a free block in use")
}
