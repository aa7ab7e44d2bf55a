package tree

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/snapshot"
)

// A restore says what is short before the kernel ends a program for it. Zeros need nothing.
func TestARestoreNeedsHostMemory(t *testing.T) {
	pages := []snapshot.File{
		{Content: snapshot.Content{Size: 2 << 20, Blocks: []snapshot.Sum{{1}}}},
		{Content: snapshot.Content{Size: 4 << 20, Blocks: []snapshot.Sum{{}, {2}}}},
	}
	require.NoError(t, hasRoom(pages, 4<<20))
	require.ErrorContains(t, hasRoom(pages, 3<<20), "4.00 MiB of private memory, and 3.00 MiB of host memory is available")
}
