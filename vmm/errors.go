package vmm

import (
	"tms/vmm/contexts"
	"tms/vmm/cuda"
	"tms/vmm/quota"
)

// What the engine itself refuses. Driver failures are *cuda.Error, a lack of host memory is store.ErrHostMemory; any
// of them may be wrapped.
var (
	// ErrInvalidAddress: the address is not the start of a live segment (never was, was freed, or
	// lies inside one). Nothing was changed.
	ErrInvalidAddress = cuda.Refuse(cuda.InvalidValue, "not the start of a live pausable segment")

	// ErrContents: what a resume brought back is not what the pause had saved (TMS_VERIFY). The
	// segments are paused; what was saved stays.
	ErrContents = cuda.Refuse(cuda.IllegalState, "contents differ from those before the pause")

	// ErrMargin and ErrLimit: see package quota.
	ErrMargin, ErrLimit = quota.ErrMargin, quota.ErrLimit

	ErrTooLarge = cuda.Refuse(cuda.OutOfMemory, "the allocation is larger than the device's memory")

	// ErrContext: a pause could not wait for work in the current context before it takes memory away.
	ErrContext = contexts.ErrUnknown

	// ErrNotShareable: memory that was not made to be shared between processes.
	ErrNotShareable = cuda.Refuse(cuda.NotSupported, "pausable memory can be opened by other processes where the "+
		"program was started with tms run, or with TMS_SHAREABLE=ipc: do one of these, or allocate it outside regions")

	// ErrShareGone: the memory was freed, or its process has ended.
	ErrShareGone = cuda.Refuse(cuda.InvalidHandle, "the memory is gone")

	// ErrSharePaused: the process that has the memory has paused it, or is about to.
	ErrSharePaused = cuda.Refuse(cuda.NotReady, "the memory is paused where it was allocated")

	ErrSilent = cuda.Refuse(cuda.Timeout, "the process does not answer")

	ErrImported = cuda.Refuse(cuda.NotReady, "other processes have the memory mapped")

	// ErrBarred: others keep memory paused that a resume is for; see Options.Barred.
	ErrBarred = cuda.Refuse(cuda.NotPermitted, "others keep this program paused")

	// ErrCapturing: a stream is being captured into a graph; end the capture first.
	ErrCapturing = contexts.ErrCapturing
)
