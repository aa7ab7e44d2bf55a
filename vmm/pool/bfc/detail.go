package bfc

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
