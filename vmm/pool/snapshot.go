package pool

// Snapshotter is a Pool that shows the use of every byte that it holds.
type Snapshotter interface {
	// Snapshot returns a value with the JSON of the allocator that the kind follows: torch.cuda.memory_snapshot for
	// caching, bfc_memory_map.proto for bfc. It holds the pool's lock for a time in proportion to the blocks.
	Snapshot() any
}

// Accumulator is a Pool whose statistics have sums since its start.
type Accumulator interface {
	// ResetAccumulatedStats sets the sums in Stats.Detail to 0; the other counters stay.
	// (torch.cuda.reset_accumulated_memory_stats)
	ResetAccumulatedStats()
}
