package backup

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Every copy lies in one unit, and a span of up to maxUnit in one copy: users copy from retained
// contents themselves, and the driver refuses what reaches across two registrations.
func TestPlacesDoNotStraddleUnits(t *testing.T) {
	const mib = 1 << 20
	var spans []Span
	for _, size := range []uint64{2 * mib, 30 * mib, 2 * mib, 40 * mib, 64 << 10, maxUnit + 2*mib, 2 * mib, 33 * mib, 2 * mib} {
		spans = append(spans, Span{Address: uintptr(len(spans)+1) << 40, Size: size})
	}
	host := NewHost(nil)
	contents, fresh, err := host.place(Job{Node: -1}, items(spans, nil))
	require.NoError(t, err)
	var end uint64
	for i := range fresh.units {
		u := &fresh.units[i]
		require.Equal(t, end, u.offset)
		require.Positive(t, u.size)
		end += u.size
	}
	require.Equal(t, end, fresh.size)
	var used uint64
	for i, span := range spans {
		c := contents[i].(*hostContents)
		require.GreaterOrEqual(t, c.offset, used, "spans overlap")
		used = c.offset + span.Size
		jobs := c.jobs(span, Range{0, span.Size})
		if span.Size <= maxUnit {
			require.Len(t, jobs, 1)
		}
		var done uint64
		for _, job := range jobs {
			u := &fresh.units[job.unit]
			offset := uint64(job.host - fresh.base)
			require.GreaterOrEqual(t, offset, u.offset)
			require.LessOrEqual(t, offset+job.size, u.offset+u.size)
			require.Equal(t, span.Address+uintptr(done), job.device)
			done += job.size
		}
		require.Equal(t, span.Size, done)
	}
	require.LessOrEqual(t, used, end)
	// Small spans share a registration.
	require.Equal(t, contents[0].(*hostContents).unit, contents[1].(*hostContents).unit)
}

// Parts of a span are copied between the same places as the whole, and split where units end.
func TestPartsOfASpan(t *testing.T) {
	span := Span{Address: 1 << 40, Size: maxUnit + 64<<20}
	host := NewHost(nil)
	contents, fresh, err := host.place(Job{Node: -1}, items([]Span{span}, nil))
	require.NoError(t, err)
	c := contents[0].(*hostContents)
	require.Empty(t, c.jobs(span))
	jobs := c.jobs(span, Range{2 << 20, 2 << 20}, Range{maxUnit - 2<<20, 4 << 20})
	require.Equal(t, []copyJob{
		{span.Address + 2<<20, fresh.base + 2<<20, 2 << 20, 0},
		{span.Address + maxUnit - 2<<20, fresh.base + maxUnit - 2<<20, 2 << 20, 0},
		{span.Address + maxUnit, fresh.base + maxUnit, 2 << 20, 1},
	}, jobs)
}

func TestHostMemoryPrefersTheNodeOfTheDevice(t *testing.T) {
	fresh, err := newSlab(nil, Job{Node: 0}, 2<<20)
	require.NoError(t, err)
	const ofAddress = 2 // MPOL_F_ADDR
	var mode int32
	var mask nodeMask
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64), fresh.base, ofAddress, 0)
	runtime.KeepAlive(fresh)
	if errno != 0 {
		t.Skipf("get_mempolicy is not allowed here: %v", errno)
	}
	require.EqualValues(t, preferred, mode)
	require.EqualValues(t, 1, mask[0])
	require.NoError(t, unix.Munmap(fresh.mapping))
}
