package cuda

import (
	"errors"
	"fmt"
)

// Result is a CUresult, the code that every driver function returns. cudaError_t has the same numbers.
type Result int32

// The results that this project acts on.
const (
	Success                  Result = 0
	InvalidValue             Result = 1
	OutOfMemory              Result = 2
	NotInitialized           Result = 3
	Deinitialized            Result = 4 // its process is ending
	NoDevice                 Result = 100
	InvalidContext           Result = 201
	FileNotFound             Result = 301
	OperatingSystem          Result = 304
	InvalidHandle            Result = 400
	IllegalState             Result = 401
	SymbolNotFound           Result = 500
	NotReady                 Result = 600
	IllegalAddress           Result = 700
	ContextIsDestroyed       Result = 709
	NotPermitted             Result = 800
	NotSupported             Result = 801
	StreamCaptureUnsupported Result = 900
	StreamCaptureImplicit    Result = 906
	Timeout                  Result = 909
	Unknown                  Result = 999
)

// Error is a driver function that failed.
type Error struct {
	Call   string // the function, as exported: cuMemMap
	Result Result
	Text   string // one line, from cuGetErrorString
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Result)
}

// Is makes errors.Is(err, cuda.OutOfMemory) work.
func (e *Error) Is(target error) bool {
	r, ok := target.(Result)
	return ok && r == e.Result
}

// Refusal is an error with a code of its own, where no call of the driver has failed.
type Refusal struct {
	error
	Result Result
}

// Refuse makes a Refusal; the rest is as for fmt.Errorf.
func Refuse(code Result, format string, arguments ...any) error {
	return &Refusal{fmt.Errorf(format, arguments...), code}
}

// Unwrap makes errors.Is and errors.As see what it wraps.
func (r *Refusal) Unwrap() error { return r.error }

// Code returns the number that stands for err at the C interface, as CUresult and cudaError_t: that of the first
// Refusal, else of the driver function that failed, else Unknown; Success for nil.
func Code(err error) int {
	var refused *Refusal
	var failed *Error
	result := Unknown
	switch {
	case err == nil:
		return int(Success)
	case errors.As(err, &refused):
		return int(refused.Result)
	case errors.As(err, &failed):
		return int(failed.Result)
	default:
		errors.As(err, &result)
		return int(result)
	}
}

// sticky reports whether a fault in a kernel has ended the context: every call returns the error from then on.
func sticky(err error) bool {
	failed, ok := errors.AsType[*Error](err)
	return ok && (failed.Result >= 700 && failed.Result < 720 || failed.Result == InvalidHandle)
}

// Ended reports whether an error says that a context has no work left: it is gone, or a fault has ended it.
func Ended(err error) bool { return sticky(err) || Gone(err) }

// Gone reports whether an error says that a context was reset or destroyed. (709 of a primary one: seen on driver 580)
func Gone(err error) bool {
	return errors.Is(err, InvalidContext) || errors.Is(err, ContextIsDestroyed)
}

// Error is for a Result by itself: an error with a text of its own wraps the Result by %.0w, which prints nothing.
func (r Result) Error() string { return fmt.Sprintf("CUDA driver error %d", int32(r)) }
