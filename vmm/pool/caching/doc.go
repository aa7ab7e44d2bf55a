// Package caching is PyTorch 2.0.0's native allocator (c10/cuda/CUDACachingAllocator.cpp) as a pool. It keeps freed
// blocks for their stream, splits and merges them within their segments, and gives segments back to the source only at
// out of memory, by garbage collection or by Trim.
//
// The files and the functions of PyTorch that they follow:
//
//	caching.go    malloc, get_free_block, free, recordStream; insert_events, process_events are in package multistream
//	round.go      round_size, roundup_power2_divisions, get_allocation_size
//	extend.go     alloc_block and the steps before a malloc fails
//	split.go      should_split, free_block, try_merge_blocks
//	release.go    release_available_cached_blocks, release_cached_blocks, release_block, garbage_collect_cached_blocks
//	blockpool.go  BlockPool, get_pool, PrivatePool; notifyCaptureBegin, notifyCaptureEnd, notifyCaptureDestroy are in
//	              package multistream too
//	stats.go      DeviceStats
package caching
