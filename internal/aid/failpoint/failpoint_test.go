package failpoint

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErr(t *testing.T) {
	require.NoError(t, Err("open"))
	full := errors.New("full")
	Set(func(call string) error {
		if call == "write" {
			return full
		}
		return nil
	})
	require.NoError(t, Err("open"))
	require.Equal(t, full, Err("write"))
	Set(nil)
	require.NoError(t, Err("write"))
}

func BenchmarkErr(b *testing.B) {
	for b.Loop() {
		if Err("write") != nil {
			b.Fatal()
		}
	}
}
