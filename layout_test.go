package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The command finds libtms.so wherever an installer puts the two, and its own version before another.
func TestLibraryPaths(t *testing.T) {
	for name, files := range map[string]string{ // the library that is found comes first
		"checkout":      "lib/libtms.so",
		"beside":        "bin/libtms.so lib/libtms.so",
		"target":        "tms/lib/libtms.so",
		"venv":          "lib/python3.12/site-packages/tms/lib/libtms.so",
		"lib64":         "lib64/python3.12/site-packages/tms/lib/libtms.so",
		"debian":        "lib/python3.11/dist-packages/tms/lib/libtms.so",
		"an [odd] name": "lib/python3.12/site-packages/tms/lib/libtms.so",
		"two": "lib/python3.12/site-packages/tms/lib/libtms.so lib/python3.11/site-packages/tms/lib/libtms.so " +
			"lib/python3.11/site-packages/libtms-0.0.1.dist-info/RECORD " +
			"lib/python3.12/site-packages/libtms-" + Version + ".dist-info/RECORD",
	} {
		prefix := filepath.Join(t.TempDir(), name)
		for file := range strings.FieldsSeq(files) {
			path := filepath.Join(prefix, file)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, nil, 0o644))
		}
		for _, path := range LibraryPaths(filepath.Join(prefix, "bin", "tms")) {
			if _, err := os.Stat(path); err == nil {
				require.Equal(t, filepath.Join(prefix, strings.Fields(files)[0]), path, name)
				break
			}
		}
	}
}
