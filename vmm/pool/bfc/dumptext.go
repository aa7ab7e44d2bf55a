package bfc

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
)

// Text returns the dump for reading: totals of each bin, the free chunks of the bin searched first for size bytes, all
// chunks of each region, the chunks in use summed up by size, the statistics. (BFCAllocator::DumpMemoryLog)
func (d MemoryDump) Text(size uint64) string {
	var text strings.Builder
	say := func(format string, arguments ...any) { fmt.Fprintf(&text, format, arguments...) }
	say("tms: bfc pool: out of memory for %s; it holds:\n", human(size))
	for _, b := range d.Bins {
		say("Bin %s: %d chunks, %d in use; %s in chunks, %s in use, %s requested\n",
			human(binSize(b.Bin)), b.TotalChunksInBin, b.TotalChunksInUse,
			human(b.TotalBytesInBin), human(b.TotalBytesInUse), human(b.TotalRequestedBytesInUse))
	}

	first := binFor(max(size, granularity))
	say("Free chunks in bin %s, the first for %s:\n", human(binSize(first)), human(size))
	for _, r := range d.Regions {
		chunks := d.in(r)
		for i, c := range chunks {
			if c.Bin != first {
				continue
			}
			say("  %v", c)
			if i > 0 {
				say(", after %v", chunks[i-1])
			}
			if i+1 < len(chunks) {
				say(", before %v", chunks[i+1])
			}
			say("\n")
		}
	}

	bySize := map[uint64]uint64{} // chunks in use
	for _, r := range d.Regions {
		say("Region at %#x of %d bytes:\n", r.Address, r.Size)
		for _, c := range d.in(r) {
			say("  %v\n", c)
			if c.InUse {
				bySize[c.Size]++
			}
		}
	}

	say("In use by size:\n")
	for _, bytes := range slices.Sorted(maps.Keys(bySize)) {
		say("  %d chunks of %d bytes, together %s\n", bySize[bytes], bytes, human(bytes*bySize[bytes]))
	}
	say("In use altogether: %s\n", human(d.Stats.BytesInUse))

	s, limit := d.Stats, "none"
	if s.BytesLimit > 0 {
		limit = fmt.Sprint(s.BytesLimit)
	}
	say("Limit %s, reserved %d (at most %d), in use %d (at most %d), %d allocations, the largest %d\n",
		limit, s.BytesReserved, s.PeakBytesReserved, s.BytesInUse, s.PeakBytesInUse, s.NumAllocs, s.LargestAllocSize)
	say("Largest free chunk %d, fragmentation %.3f\n", s.LargestFreeBlockBytes, s.FragmentationMetric)
	return text.String()
}

func (d *MemoryDump) in(r RegionDump) []ChunkDump {
	from := func(address uintptr) int {
		return sort.Search(len(d.Chunks), func(i int) bool { return d.Chunks[i].Address >= address })
	}
	return d.Chunks[from(r.Address):from(r.Address+uintptr(r.Size))]
}

// String names the chunk in a line of a dump.
func (c ChunkDump) String() string {
	if c.InUse {
		return fmt.Sprintf("used %#x of %d bytes, %d requested", c.Address, c.Size, c.RequestedSize)
	}
	return fmt.Sprintf("free %#x of %d bytes", c.Address, c.Size)
}

// human returns a number of bytes in three or four digits.
func human(bytes uint64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%dB", bytes)
	}
	value, unit := float64(bytes)/(1<<10), 0
	for value >= 1<<10 {
		value /= 1 << 10
		unit++
	}
	return fmt.Sprintf("%.1f%ciB", value, "KMGTPE"[unit])
}
