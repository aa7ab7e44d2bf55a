package paddle

import "tms/vmm/pool"

// Detail is what the kind counts beyond pool.Stats, in bytes; used and free are of the refills only,
// as Paddle's total_used_ and total_free_.
type Detail struct {
	Used        uint64 `json:"used_bytes"`
	Free        uint64 `json:"free_bytes"`
	Huge        uint64 `json:"huge_bytes"`
	HugeBlocks  uint64 `json:"huge_blocks"`
	FreeChunks  uint64 `json:"free_chunks"`
	LargestFree uint64 `json:"largest_free_chunk_bytes"`
}

// Stats is pool.Pool.Stats; Detail is a Detail.
func (p *Pool) Stats() pool.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.table.Stats()
	stats.Detail = Detail{
		Used:        stats.Live - p.hugeBytes,
		Free:        stats.Reserved - stats.Live,
		Huge:        p.hugeBytes,
		HugeBlocks:  p.huge,
		FreeChunks:  uint64(p.table.FreeChunks()),
		LargestFree: p.table.Largest(),
	}
	return stats
}

// ResetPeakStats is pool.Pool.ResetPeakStats.
func (p *Pool) ResetPeakStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.ResetPeakStats()
}
