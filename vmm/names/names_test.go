package names

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only names that were never noted are unknown, and a warning of each comes once for an operation.
func TestUnknownNames(t *testing.T) {
	var known Known
	require.Contains(t, known.Unknown("a"), "nor with any other")
	known.Note("b")
	require.Contains(t, known.Unknown("a"), `tags so far: "b"`)
	require.Empty(t, known.Unknown("b"))
	require.NotEmpty(t, known.FirstUse("pause", "a"))
	require.Empty(t, known.FirstUse("pause", "a"))
	require.NotEmpty(t, known.FirstUse("resume", "a"))
	require.Empty(t, known.FirstUse("resume", "b"))
	for i := range unknownTold {
		known.FirstUse("pause", strconv.Itoa(i))
	}
	require.Empty(t, known.FirstUse("pause", "one too many"))

	// Where there were too many to remember, none is unknown.
	for i := range 2 * most {
		known.Note("n" + strconv.Itoa(i))
	}
	require.Equal(t, most+1, known.Len())
	require.Empty(t, known.Unknown("a"))
}
