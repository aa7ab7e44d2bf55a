package bfc

import "math/bits"

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
