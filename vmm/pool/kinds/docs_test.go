package kinds_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

// docs/pools.md lists options with an example of each: every one is taken, and every kind is named.
func TestDocumentedOptions(t *testing.T) {
	text, err := os.ReadFile("../../../docs/pools.md")
	require.NoError(t, err)
	named, options := map[string]bool{}, 0
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			continue
		}
		kind, option, example := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		if len(cells) == 6 {
			named[kind] = true
			continue
		}
		if kind == "kind" || strings.HasPrefix(kind, "---") {
			continue
		}
		settings := option + "=" + example
		_, err = construct(kind, pool.NewRange(1<<20, 64<<30), settings+map[string]string{
			"fragmentation_fraction": ",memory_limit=8GiB", "memory_fraction": ",total=16GiB"}[option])
		require.NoError(t, err, "%s: %s", kind, settings)
		options++
	}
	require.Greater(t, options, 20)
	for _, kind := range kinds.Names() {
		require.True(t, named[kind], kind)
	}
}
