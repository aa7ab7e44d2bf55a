package pool

import "tms/vmm/cuda"

// Errors of the calls for CUDA graphs.
var (
	// ErrGraphPool: the graph pool does not exist, or is not in the state that the call needs.
	ErrGraphPool = cuda.Refuse(cuda.InvalidValue, "the graph pool is not in a state for this call")

	// ErrCapturing: a stream is being captured into a graph; end the capture first.
	ErrCapturing = cuda.Refuse(cuda.StreamCaptureUnsupported,
		"a stream is being captured into a CUDA graph; end the capture, then call again")
)

// GraphPoolID names a private pool of graphs. (PyTorch's MempoolId_t)
type GraphPoolID [2]uint64

// GraphPools is a Pool with private pools for CUDA graphs. A captured graph contains addresses, so memory allocated
// during its capture must stay the graph's own until the graph is gone.
type GraphPools interface {
	// BeginAllocateToPool makes the streams that filter accepts (nil: all) allocate from the private pool id until
	// EndAllocateToPool, and counts one more graph that uses it. The pool calls filter under its lock; filter must not
	// call the pool. Errors: ErrGraphPool if streams allocate from id already, or it was released.
	BeginAllocateToPool(id GraphPoolID, filter func(Stream) bool) error

	// EndAllocateToPool ends that. Errors: ErrGraphPool if no stream allocates from id.
	EndAllocateToPool(id GraphPoolID) error

	// ReleasePool notes that one of the graphs is gone. After the last, the private pool's free memory can go back to
	// the source. Errors: ErrGraphPool if the pool is unknown or released, or the last graph is still being captured.
	ReleasePool(id GraphPoolID) error
}
