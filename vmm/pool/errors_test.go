package pool_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/cuda"
	"tms/vmm/pool"
)

// The numbers are cudaError_t's, and count before those of what a refusal wraps.
func TestCodes(t *testing.T) {
	for err, code := range map[error]cuda.Result{
		pool.ErrOutOfMemory:    cuda.OutOfMemory,
		pool.ErrTooLarge:       cuda.OutOfMemory,
		pool.ErrInvalidAddress: cuda.InvalidValue,
		pool.ErrDestroyed:      cuda.InvalidValue,
		pool.ErrOption:         cuda.InvalidValue,
		pool.ErrGraphPool:      cuda.InvalidValue,
		pool.ErrCapturing:      cuda.StreamCaptureUnsupported,
		cuda.Refuse(cuda.NotSupported, "not by this kind"): cuda.NotSupported,
	} {
		for _, wrapped := range []error{err, fmt.Errorf("%w: %w", err, cuda.NotReady),
			errors.Join(errors.New("and"), &pool.Refusal{Cause: err})} {
			require.Equal(t, int(code), cuda.Code(wrapped), "%v", wrapped)
			require.ErrorIs(t, wrapped, err)
		}
	}
}
