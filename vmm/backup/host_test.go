package backup

import (
	"testing"

	"github.com/stretchr/testify/require"
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
	contents, fresh, err := host.place(0, spans, make([]Contents, len(spans)))
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
		jobs := c.jobs(span)
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
