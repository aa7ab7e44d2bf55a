package pool

import "tms/vmm/cuda"

// What the calls about CUDA graphs refuse.
var (
	// ErrGraphPool: the graph pool does not exist, or is not in the state that the call needs.
	ErrGraphPool = cuda.Refuse(cuda.InvalidValue, "the graph pool is not in a state for this call")

	// ErrCapturing: a stream is being captured into a graph; end the capture first.
	ErrCapturing = cuda.Refuse(cuda.StreamCaptureUnsupported,
		"a stream is being captured into a CUDA graph; end the capture, then call again")
)

// GraphPoolID names a private pool of graphs. (PyTorch's MempoolId_t)
type GraphPoolID [2]uint64

// GraphPools is what a Pool may also be: one with private pools for CUDA graphs. A captured graph has
// addresses baked in, so what was allocated while it was captured must stay its own until it is gone.
type GraphPools interface {
	// BeginAllocateToPool makes the streams that filter accepts (nil: all) allocate from the private
	// pool id until EndAllocateToPool, and counts one more graph that uses it. The filter is called
	// under the pool's lock and must not call the pool.
	// Errors: ErrGraphPool when it is being allocated to already, or was released.
	BeginAllocateToPool(id GraphPoolID, filter func(Stream) bool) error

	// EndAllocateToPool ends that. Errors: ErrGraphPool when no such allocation is under way.
	EndAllocateToPool(id GraphPoolID) error

	// ReleasePool says that one of the graphs is gone. After the last, what is free in the private
	// pool can go back to the source. Errors: ErrGraphPool when the pool is unknown, released, or the
	// last graph is still being captured.
	ReleasePool(id GraphPoolID) error
}
