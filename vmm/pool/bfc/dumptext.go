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
	fmt.Fprintf(&text, "tms: bfc pool: out of memory for %s; it holds:\n", human(size))
	d.writeBins(&text)
	d.writeBinFor(&text, size)
	d.writeRegions(&text)
	d.writeSizes(&text)
	d.writeStats(&text)
	return text.String()
}

func (d *MemoryDump) writeBins(text *strings.Builder) {
	for _, b := range d.Bins {
		fmt.Fprintf(text, "Bin %s: %d chunks, %d in use; %s in chunks, %s in use, %s requested\n",
			human(binSize(b.Bin)), b.TotalChunksInBin, b.TotalChunksInUse,
			human(b.TotalBytesInBin), human(b.TotalBytesInUse), human(b.TotalRequestedBytesInUse))
	}
}

func (d *MemoryDump) writeBinFor(text *strings.Builder, size uint64) {
	bin := binFor(max(size, granularity))
	fmt.Fprintf(text, "Free chunks in bin %s, the first for %s:\n", human(binSize(bin)), human(size))
	for _, r := range d.Regions {
		chunks := d.in(r)
		for i, c := range chunks {
			if c.Bin != bin {
				continue
			}
			fmt.Fprintf(text, "  %v", c)
			if i > 0 {
				fmt.Fprintf(text, ", after %v", chunks[i-1])
			}
			if i+1 < len(chunks) {
				fmt.Fprintf(text, ", before %v", chunks[i+1])
			}
			text.WriteByte('\n')
		}
	}
}

func (d *MemoryDump) writeRegions(text *strings.Builder) {
	for _, r := range d.Regions {
		fmt.Fprintf(text, "Region at %#x of %d bytes:\n", r.Address, r.Size)
		for _, c := range d.in(r) {
			fmt.Fprintf(text, "  %v\n", c)
		}
	}
}

// in returns the chunks of a region.
func (d *MemoryDump) in(r RegionDump) []ChunkDump {
	from := func(address uintptr) int {
		return sort.Search(len(d.Chunks), func(i int) bool { return d.Chunks[i].Address >= address })
	}
	return d.Chunks[from(r.Address):from(r.Address+uintptr(r.Size))]
}

func (d *MemoryDump) writeSizes(text *strings.Builder) {
	bySize := map[uint64]uint64{}
	for _, c := range d.Chunks {
		if c.InUse {
			bySize[c.Size]++
		}
	}
	text.WriteString("In use by size:\n")
	for _, size := range slices.Sorted(maps.Keys(bySize)) {
		fmt.Fprintf(text, "  %d chunks of %d bytes, together %s\n", bySize[size], size, human(size*bySize[size]))
	}
	fmt.Fprintf(text, "In use altogether: %s\n", human(d.Stats.BytesInUse))
}

func (d *MemoryDump) writeStats(text *strings.Builder) {
	s, limit := d.Stats, "none"
	if s.BytesLimit > 0 {
		limit = fmt.Sprint(s.BytesLimit)
	}
	fmt.Fprintf(text, "Limit %s, reserved %d (at most %d), in use %d (at most %d), %d allocations, the largest %d\n",
		limit, s.BytesReserved, s.PeakBytesReserved, s.BytesInUse, s.PeakBytesInUse, s.NumAllocs, s.LargestAllocSize)
	fmt.Fprintf(text, "Largest free chunk %d, fragmentation %.3f\n", s.LargestFreeBlockBytes, s.FragmentationMetric)
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
