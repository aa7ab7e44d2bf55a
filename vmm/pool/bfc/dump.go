package bfc

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sort"
	"strings"
)

// MemoryDump shows every byte of a pool. As JSON it has the names of TensorFlow's bfc_memory_map.proto, and regions.
type MemoryDump struct {
	AllocatorName string       `json:"allocator_name"`
	Bins          []BinSummary `json:"bin_summary"`
	Chunks        []ChunkDump  `json:"chunk"` // by address
	Stats         Detail       `json:"stats"`
	Regions       []RegionDump `json:"region"` // by address
}

// BinSummary counts the chunks of a bin's sizes, including those in use.
type BinSummary struct {
	Bin                      int    `json:"bin"`
	TotalBytesInUse          uint64 `json:"total_bytes_in_use"`
	TotalBytesInBin          uint64 `json:"total_bytes_in_bin"`
	TotalChunksInUse         uint64 `json:"total_chunks_in_use"`
	TotalChunksInBin         uint64 `json:"total_chunks_in_bin"`
	TotalRequestedBytesInUse uint64 `json:"total_requested_bytes_in_use"`
}

type ChunkDump struct {
	Address       uintptr `json:"address"`
	Size          uint64  `json:"size"`
	RequestedSize uint64  `json:"requested_size"`
	Bin           int     `json:"bin"` // that it is in, -1 for a chunk in use
	InUse         bool    `json:"in_use"`
}

type RegionDump struct {
	Address uintptr `json:"address"`
	Size    uint64  `json:"size"`
}

// Snapshot is pool.Snapshotter.Snapshot; it returns a MemoryDump. (BFCAllocator::RecordMemoryMap)
func (p *Pool) Snapshot() any {
	p.Lock()
	defer p.Unlock()
	return p.memoryDump()
}

func (p *Pool) memoryDump() MemoryDump {
	d := MemoryDump{
		AllocatorName: "bfc",
		Bins:          make([]BinSummary, binCount),
		Chunks:        []ChunkDump{},
		Stats:         p.detail(),
		Regions:       []RegionDump{},
	}
	for b := range d.Bins {
		d.Bins[b].Bin = b
	}
	for _, region := range p.table.Regions() {
		d.Regions = append(d.Regions, RegionDump{region.Address, region.Size})
		for h := range p.table.In(region) {
			c := p.table.At(h)
			dumped := ChunkDump{Address: c.Address, Size: c.Size, RequestedSize: c.Requested, Bin: binFor(c.Size)}
			bin := &d.Bins[dumped.Bin]
			bin.TotalChunksInBin++
			bin.TotalBytesInBin += c.Size
			if c.Taken() {
				bin.TotalChunksInUse++
				bin.TotalBytesInUse += c.Size
				bin.TotalRequestedBytesInUse += c.Requested
				dumped.InUse, dumped.Bin = true, -1
			}
			d.Chunks = append(d.Chunks, dumped)
		}
	}
	return d
}

// Bin b has the free chunks from 256 << b bytes to twice that, the last bin all larger ones. Only a dump has bins.
const binCount = 21

func binFor(size uint64) int {
	return min(bits.Len64(size/granularity)-1, binCount-1)
}

func binSize(bin int) uint64 { return granularity << bin }

// Detail has TensorFlow's names (tsl AllocatorStats, MemAllocatorStats); sizes are in bytes.
type Detail struct {
	NumAllocs             uint64 `json:"num_allocs"`
	BytesInUse            uint64 `json:"bytes_in_use"`
	PeakBytesInUse        uint64 `json:"peak_bytes_in_use"`
	LargestAllocSize      uint64 `json:"largest_alloc_size"`
	BytesLimit            uint64 `json:"bytes_limit,omitempty"` // 0: none
	BytesReserved         uint64 `json:"bytes_reserved"`
	PeakBytesReserved     uint64 `json:"peak_bytes_reserved"`
	LargestFreeBlockBytes uint64 `json:"largest_free_block_bytes"`

	// FragmentationMetric is the part of the free bytes outside the largest free chunk.
	FragmentationMetric float64 `json:"fragmentation_metric"`
}

func (p *Pool) detail() Detail {
	s := p.table.Stats()
	d := Detail{
		NumAllocs:             s.Mallocs,
		BytesInUse:            s.Live,
		PeakBytesInUse:        s.PeakLive,
		LargestAllocSize:      p.largest,
		BytesReserved:         s.Reserved,
		PeakBytesReserved:     s.PeakReserved,
		LargestFreeBlockBytes: p.table.Largest(),
	}
	if p.limit != unlimited {
		d.BytesLimit = p.limit
	}
	if free := s.Reserved - s.Live; free > 0 {
		d.FragmentationMetric = float64(free-d.LargestFreeBlockBytes) / float64(free)
	}
	return d
}

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
