package space

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/cuda"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// driver hands out addresses from 1 TiB on, of reservations up to most bytes.
type driver struct {
	next  uintptr
	most  uint64
	freed int
}

func newDriver() *driver { return &driver{next: 1 << 40, most: math.MaxUint64} }

func (d *driver) MemAddressReserve(size, _ uint64) (uintptr, error) {
	if size > d.most {
		return 0, cuda.OutOfMemory
	}
	base := d.next
	d.next += uintptr(size) + gib
	return base, nil
}

func (d *driver) MemAddressFree(uintptr, uint64) error {
	d.freed++
	return nil
}

func (d *driver) End(_ string, end func() error) { _ = end() }

// owner is the owner of spans in these tests.
type owner struct{ span Span[owner] }

// bench is a space, and what it has announced.
type bench struct {
	*Space[owner]
	driver *driver
	arenas []uint64
	refuse error
}

func newBench() *bench {
	b := &bench{driver: newDriver()}
	b.Space = New[owner](b.driver, func(_ uintptr, size uint64) error {
		b.arenas = append(b.arenas, size)
		return b.refuse
	})
	return b
}

func gpu(ordinal int) Device {
	return Device{Ordinal: ordinal, Granularity: 2 * mib, Total: 80 * gib}
}

func take(t *testing.T, r *Ranges[owner], granules uint32, small bool) *owner {
	t.Helper()
	return takeIn(t, r, granules, small, nil)
}

func takeIn(t *testing.T, r *Ranges[owner], granules uint32, small bool, room *Room) *owner {
	t.Helper()
	span, err := r.Allocate(granules, small, room)
	require.NoError(t, err)
	o := &owner{span}
	span.Enter(o)
	return o
}

func (o *owner) release() {
	o.span.Enter(nil)
	o.span.Release()
}

// nobody is the check of spans without an owner.
func nobody(Span[owner]) bool { return false }

// The spans of a room are side by side however the tag and its other rooms grow, and its addresses are for it alone.
func TestRooms(t *testing.T) {
	b := newBench()
	r := b.NewRanges(gpu(0))
	rooms := []*Room{nil, {Bytes: 4 * gib}, {Bytes: 1 << 60}}
	ends := make([]uintptr, len(rooms))
	var all []*owner
	for i := range 300 {
		n := i % len(rooms)
		o := takeIn(t, r, 3, false, rooms[n])
		span := o.span
		all = append(all, o)
		require.Same(t, rooms[n], span.Room())
		if rooms[n] != nil && ends[n] != 0 {
			require.Equal(t, ends[n], span.Address())
		}
		ends[n] = span.Address() + 6*mib
	}
	require.NoError(t, r.Check(nobody))
	for _, o := range all {
		o.release()
	}
	require.True(t, r.Empty())
	require.NoError(t, r.Check(nobody))
}

// Every address of a span leads to its owner, of each device, and to none once it is released.
func TestFind(t *testing.T) {
	b := newBench()
	var all []*owner
	for ordinal := range 2 {
		r := b.NewRanges(gpu(ordinal))
		for granules := uint32(1); granules < 20; granules += 6 {
			all = append(all, take(t, r, granules, false))
		}
		require.NoError(t, r.Check(nobody))
	}
	granules := map[*owner]uint32{}
	for address, o := range b.Owners() {
		require.Equal(t, o.span.Address()+uintptr(granules[o])*2*mib, address)
		granules[o]++
	}
	for _, o := range all {
		size := uintptr(o.span.Granules()) * 2 * mib
		for _, offset := range []uintptr{0, 1, size / 2, size - 1} {
			found, inside := b.Find(o.span.Address() + offset)
			require.True(t, inside)
			require.Same(t, o, found)
		}
		require.Equal(t, o.span.Granules(), granules[o])
		o.release()
		found, inside := b.Find(o.span.Address())
		require.True(t, inside)
		require.Nil(t, found)
	}
	_, inside := b.Find(1)
	require.False(t, inside)
	require.Len(t, b.arenas, 2)
}

// A tag's spans lie side by side, in ranges that grow with what it has; a single small one takes no more than
// its granule.
func TestRanges(t *testing.T) {
	b := newBench()
	small, large := b.NewRanges(gpu(0)), b.NewRanges(gpu(0))
	require.True(t, small.Empty())
	first := take(t, small, 1, true)
	var all []*owner
	for range 40 + 40 + 80 {
		all = append(all, take(t, large, 1, false))
	}
	require.Equal(t, first.span.Address()+2*mib, all[0].span.Address(), "nothing is left between")
	for i, o := range all {
		require.Equal(t, all[0].span.Address()+uintptr(i)*2*mib, o.span.Address())
		require.True(t, large.Holds(o.span))
		require.False(t, small.Holds(o.span))
		require.Equal(t, i < 40, o.span.SameRange(all[0].span), "80 MiB, then as much again, then 160 MiB")
		require.Equal(t, i >= 80, o.span.SameRange(all[159].span))
	}
	for _, o := range append(all, first) {
		o.release()
	}
	require.True(t, small.Empty())
	require.True(t, large.Empty())
	whole, err := large.Allocate(uint32(b.arenas[0]/(2*mib)), false, nil)
	require.NoError(t, err)
	whole.Release()
	require.Len(t, b.arenas, 1, "everything came back as one")
}

// Spans that are split and joined stay the tag's, and are given back as one.
func TestSplitAndJoin(t *testing.T) {
	b := newBench()
	r := b.NewRanges(gpu(0))
	span, err := r.Allocate(7, false, nil)
	require.NoError(t, err)
	rest := span.Split(3)
	require.Equal(t, []uint32{3, 4}, []uint32{span.Granules(), rest.Granules()})
	require.Equal(t, span.Address()+3*2*mib, rest.Address())
	last := rest.Split(1)
	rest.Join(last)
	require.NoError(t, r.Check(func(s Span[owner]) bool { return s == span || s == rest }))
	span.Join(rest)
	require.EqualValues(t, 7, span.Granules())
	span.Release()
	require.True(t, r.Empty())
}

// Arenas are few. Where the driver refuses, smaller arenas follow, and existing addresses are used to the last.
func TestArenas(t *testing.T) {
	b := newBench()
	r := b.NewRanges(gpu(0))
	for range 150 {
		take(t, r, 5*gib/(2*mib), false)
	}
	require.Equal(t, []uint64{128 * gib, 128 * gib, 256 * gib, 512 * gib}, b.arenas)
	require.NoError(t, r.Check(nobody))

	b = newBench()
	b.driver.most = 3 * gib
	r = b.NewRanges(gpu(0))
	take(t, r, gib/(2*mib), false)
	require.Equal(t, []uint64{2 * gib}, b.arenas, "128 GiB halved until it is allowed")
	b.driver.most = 0
	take(t, r, gib/(2*mib), false)
	_, err := r.Allocate(1, false, nil)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.ErrorContains(t, err, "reserving 2.00 MiB of addresses")

	b.driver.most = math.MaxUint64
	b.refuse = errors.New("not this one")
	_, err = r.Allocate(1, false, nil)
	require.ErrorIs(t, err, b.refuse)
	require.Equal(t, 1, b.driver.freed)
	require.NoError(t, r.Check(nobody))
}

// Each contradiction is found.
func TestCheck(t *testing.T) {
	b := newBench()
	r := b.NewRanges(gpu(0))
	one, two := take(t, r, 1, false), take(t, r, 2, false)
	for name, damage := range map[string]func() (repair func()){
		"tag":      func() func() { one.span.in.of = nil; return func() { one.span.in.of = r } },
		"used":     func() func() { one.span.in.used++; return func() { one.span.in.used-- } },
		"granules": func() func() { r.granules++; return func() { r.granules-- } },
		"free":     func() func() { one.span.block.free = true; return func() { one.span.block.free = false } },
		"start":    func() func() { two.span.block.start++; return func() { two.span.block.start-- } },
		"neighbour": func() func() {
			two.span.block.previous = nil
			return func() { two.span.block.previous = one.span.block }
		},
	} {
		require.NoError(t, r.Check(nobody), "before %s", name)
		repair := damage()
		require.Error(t, r.Check(nobody), name)
		repair()
	}
	two.release()
	require.ErrorContains(t, r.Check(func(s Span[owner]) bool { return s == two.span }), "a free block in use")
}
