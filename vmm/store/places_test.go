package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/cuda"
)

// Every copy lies in one registration, and a span of up to maxRegistration in one copy: users copy from retained
// contents themselves, and the driver refuses a copy that reaches from one into the next.
func TestPlacesDoNotStraddleRegistrations(t *testing.T) {
	var spans []Span
	for _, size := range []uint64{2 * mib, 30 * mib, 2 * mib, 40 * mib, 64 << 10, maxRegistration + 2*mib, 2 * mib,
		33 * mib, 2 * mib} {
		spans = append(spans, Span{Address: uintptr(len(spans)+1) << 40, Size: size})
	}
	items := make([]Item, len(spans))
	for i, span := range spans {
		items[i].Span = span
	}
	host := NewPrivate(new(cuda.Driver))
	contents, fresh, err := host.place(Job{Node: -1}, items)
	require.NoError(t, err)
	var end uint64
	for i := range fresh.Registrations {
		r := &fresh.Registrations[i]
		require.Equal(t, end, r.Offset)
		require.Positive(t, r.Size)
		end += r.Size
	}
	require.Equal(t, end, fresh.Size)
	var used uint64
	for i, span := range spans {
		c := contents[i].(*privateContents)
		require.GreaterOrEqual(t, c.offset, used, "spans overlap")
		used = c.offset + span.Size
		copies := c.copies(span, Range{Offset: 0, Size: span.Size})
		if span.Size <= maxRegistration {
			require.Len(t, copies, 1)
		}
		var done uint64
		for _, copy := range copies {
			r := &fresh.Registrations[copy.Piece]
			offset := uint64(copy.Saved - fresh.Base)
			require.GreaterOrEqual(t, offset, r.Offset)
			require.LessOrEqual(t, offset+copy.Size, r.Offset+r.Size)
			require.Equal(t, span.Address+uintptr(done), copy.Device)
			done += copy.Size
		}
		require.Equal(t, span.Size, done)
	}
	require.LessOrEqual(t, used, end)
	// Small spans share a registration.
	require.Equal(t, contents[0].(*privateContents).registration, contents[1].(*privateContents).registration)
}

// Parts of a span are copied between the same places as the whole, and split where registrations end.
func TestPartsOfASpan(t *testing.T) {
	span := Span{Address: 1 << 40, Size: maxRegistration + 64<<20}
	host := NewPrivate(new(cuda.Driver))
	contents, fresh, err := host.place(Job{Node: -1}, []Item{{Span: span}})
	require.NoError(t, err)
	c := contents[0].(*privateContents)
	require.Empty(t, c.copies(span))
	copies := c.copies(span, Range{Offset: 2 << 20, Size: 2 << 20},
		Range{Offset: maxRegistration - 2<<20, Size: 4 << 20})
	require.Equal(t, []spanCopy{
		{Device: span.Address + 2<<20, Saved: fresh.Base + 2<<20, Size: 2 << 20},
		{Device: span.Address + maxRegistration - 2<<20, Saved: fresh.Base + maxRegistration - 2<<20, Size: 2 << 20},
		{Device: span.Address + maxRegistration, Saved: fresh.Base + maxRegistration, Size: 2 << 20, Piece: 1},
	}, copies)
}
