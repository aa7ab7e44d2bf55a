package vmm

import (
	"errors"

	"tms/vmm/backup"
	"tms/vmm/backup/disk"
	"tms/vmm/cuda"
)

// What the engine itself refuses. Driver failures come as *cuda.Error, host memory that could not
// be had as backup.ErrHostMemory; all of them may be wrapped.
var (
	// ErrInvalidAddress: the address is not the start of a live segment (never was, was freed, or
	// lies inside one). Nothing was changed.
	ErrInvalidAddress = errors.New("not the start of a live pausable segment")

	// ErrContents: what a resume brought back is not what the pause had saved (TMS_VERIFY). The
	// segments are paused; what was saved is kept.
	ErrContents = errors.New("contents differ from those before the pause")

	// ErrMargin: the allocation would leave less free device memory than the margin.
	ErrMargin = errors.New("the allocation would leave less than the memory margin free")

	// ErrTooLarge: the allocation is larger than the device's memory.
	ErrTooLarge = errors.New("the allocation is larger than the device's memory")

	// ErrContext: memory made in the current context could not be waited for before a pause takes it away.
	ErrContext = errors.New("the current CUDA context was made where this library could not see it (by a function that " +
		"was found with dlsym, or as a green context), so its work could not be waited for before memory is paused; " +
		"allocate with the primary context current, or outside regions")

	// ErrNotShareable: memory that was not made to be shared between processes.
	ErrNotShareable = errors.New("pausable memory can be opened by other processes where the program was started with tms run, or " +
		"with TMS_SHAREABLE=ipc: do one of these, or allocate it outside regions")

	// ErrShareGone: the memory was freed, or its process has ended.
	ErrShareGone = errors.New("the memory is gone")

	// ErrSharePaused: the process that has the memory has paused it, or is about to.
	ErrSharePaused = errors.New("the memory is paused where it was allocated")

	// ErrSilent: another process cannot be asked for its memory.
	ErrSilent = errors.New("the process does not answer")

	// ErrImported: other processes have memory mapped that is to be paused.
	ErrImported = errors.New("other processes have the memory mapped")

	// ErrCapturing: a stream is being captured into a graph; end the capture first.
	ErrCapturing = errors.New("a stream is being captured into a CUDA graph; end the capture, then call again")
)

// Code is the cudaError_t number that stands for err at the C interface; 0 for nil.
func Code(err error) int {
	if err == nil {
		return int(cuda.Success)
	}
	var own interface{ Code() int } // of a pool's
	if errors.As(err, &own) {
		return own.Code()
	}
	for _, known := range []struct {
		err  error
		code cuda.Result
	}{
		{ErrInvalidAddress, cuda.InvalidValue},
		{ErrContents, cuda.IllegalState},
		{disk.ErrContentsLost, cuda.FileNotFound}, // before what it wraps
		{ErrMargin, cuda.OutOfMemory},
		{ErrContext, cuda.NotSupported},
		{ErrTooLarge, cuda.OutOfMemory},
		{ErrNotShareable, cuda.NotSupported},
		{ErrShareGone, cuda.InvalidHandle},
		{ErrSharePaused, cuda.NotReady},
		{ErrSilent, cuda.Timeout},
		{ErrImported, cuda.NotReady},
		{ErrCapturing, cuda.StreamCaptureUnsupported},
		{disk.ErrFailed, cuda.OperatingSystem},
		{backup.ErrHostMemory, cuda.OperatingSystem}, // before the driver's: it wraps a driver error
	} {
		if errors.Is(err, known.err) {
			return int(known.code)
		}
	}
	var failed *cuda.Error
	if errors.As(err, &failed) {
		return int(failed.Result)
	}
	var result cuda.Result
	if errors.As(err, &result) {
		return int(result)
	}
	return int(cuda.Unknown)
}
