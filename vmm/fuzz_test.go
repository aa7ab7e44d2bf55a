package vmm_test

import (
	"os"
	"testing"
)

// FuzzEngine plays any program of operations, failing calls and scarce memory against the model.
func FuzzEngine(f *testing.F) {
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if _, wrong := attempt(t, dir, modelFaults(bytes), func(s *scene) { s.play(bytes, newExtents(t, 2)) }); wrong != "" {
			_ = os.RemoveAll(dir)
			_ = os.MkdirAll(dir, 0o700)
			t.Fatal(wrong)
		}
	})
}
