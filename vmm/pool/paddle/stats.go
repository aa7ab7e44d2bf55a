package paddle

// Detail is what the kind counts beyond pool.Stats, in bytes. Used and free count refills only, as Paddle's total_used_
// and total_free_ do.
type Detail struct {
	Used        uint64 `json:"used_bytes"`
	Free        uint64 `json:"free_bytes"`
	Huge        uint64 `json:"huge_bytes"`
	HugeBlocks  uint64 `json:"huge_blocks"`
	FreeChunks  uint64 `json:"free_chunks"`
	LargestFree uint64 `json:"largest_free_chunk_bytes"`
}

func (p *Pool) detail() any {
	stats := p.table.Stats()
	return Detail{
		Used:        stats.Live - p.hugeBytes,
		Free:        stats.Reserved - stats.Live,
		Huge:        p.hugeBytes,
		HugeBlocks:  p.huge,
		FreeChunks:  uint64(p.table.FreeChunks()),
		LargestFree: p.table.Largest(),
	}
}
