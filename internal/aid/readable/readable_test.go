package readable_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/readable"
)

func TestBytes(t *testing.T) {
	for size, want := range map[uint64]string{
		0:          "0 bytes",
		1023:       "1023 bytes",
		1024:       "1.00 KiB",
		700 << 10:  "700.00 KiB",
		1 << 20:    "1.00 MiB",
		100 << 20:  "100.00 MiB",
		3 << 29:    "1.50 GiB",
		1 << 57:    "128.00 PiB",
		^uint64(0): "16.00 EiB",
	} {
		require.Equal(t, want, readable.Bytes(size))
	}
}
