package pool

// Snapshotter is what a Pool may also be: one that says what every byte it holds is used for.
type Snapshotter interface {
	// Snapshot returns what marshals to JSON as the allocator that the kind follows has it: torch.cuda.memory_snapshot
	// for caching, bfc_memory_map.proto for bfc. It takes time in proportion to the blocks, under the pool's lock.
	Snapshot() any
}

// Accumulator is what a Pool may also be: one whose statistics have sums of all there ever was.
type Accumulator interface {
	// ResetAccumulatedStats makes the sums in Stats.Detail start again from 0; the other counters go on.
	// (torch.cuda.reset_accumulated_memory_stats)
	ResetAccumulatedStats()
}
