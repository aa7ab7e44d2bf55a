// Package replay does with a pool what a recorded program did with its allocator, and says what that cost:
// time, memory and fragmentation.
//
//	replay.go    what is asked for, and what came of it
//	place.go     where segments come from; meter.go counts them
//	observe.go   once through the trace, looking at every operation
//	measure.go   many times through it, for the time; once for the size of the metadata
//	table.go     results as text
//	page.go      results as a page: timeline.go, raster.go, page.html
//	snapshot.go  a pool's history as PyTorch's: pickle.go
package replay
