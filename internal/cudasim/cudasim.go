// Package cudasim drives the simulated GPU from Go tests: it loads build/sim/libcuda.so.1 and calls the functions of
// cudasim.h, without cgo.
package cudasim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"tms/internal/aid/hermetic"
)

// Unknown is what Stat returns for a name that does not exist.
const Unknown = ^uint64(0)

// Library returns the path of the simulated libcuda.so.1, below the module root above the working directory. It is in
// folder build, and Library builds it if it must, or in the folder that TESTS_BUILD names (build/sanitized).
var Library = sync.OnceValues(library)

func library() (string, error) {
	root, err := hermetic.Root()
	if err != nil {
		return "", err
	}
	folder := os.Getenv("TESTS_BUILD")
	found := filepath.Join(root, cmp.Or(folder, "build"), "sim", "libcuda.so.1")
	if _, err := os.Stat(found); folder != "" || !errors.Is(err, fs.ErrNotExist) {
		return found, err
	}
	script := filepath.Join(root, "scripts", "build-sim.sh")
	if output, err := exec.Command(script).CombinedOutput(); err != nil {
		return "", fmt.Errorf("the simulator cannot be built: %s: %w\n%s", script, err, output)
	}
	return found, nil
}

// Sim is the simulator loaded into this process. All Sims of a process share its state.
type Sim struct {
	// Handle is the dlopen handle of libcuda.so.1, for purego.Dlsym of driver functions.
	Handle uintptr
	// Path is the file the handle came from.
	Path string

	// Stat, Fail, ClearFailures, FailuresFired and Reset are the functions of cudasim.h; Stat returns Unknown for a
	// name that does not exist.
	Stat          func(name string) uint64
	Fail          func(function string, nth, code int)
	ClearFailures func()
	FailuresFired func() uint64
	Reset         func()
}

// Start gives a test the simulator as a new process finds it, and a thread of its own: the current context belongs to the
// thread, so what the test makes current is no other test's. The thread ends with the test.
func Start(t testing.TB) *Sim {
	t.Helper()
	runtime.LockOSThread()
	sim, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	sim.Reset()
	t.Cleanup(sim.Reset)
	return sim
}

// Load loads the simulator into this process.
func Load() (*Sim, error) {
	library, err := Library()
	if err != nil {
		return nil, err
	}
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load the simulator: %w", err)
	}
	sim := &Sim{Handle: handle, Path: library}
	purego.RegisterLibFunc(&sim.Stat, handle, "cudasim_stat")
	purego.RegisterLibFunc(&sim.Fail, handle, "cudasim_fail")
	purego.RegisterLibFunc(&sim.ClearFailures, handle, "cudasim_clear_failures")
	purego.RegisterLibFunc(&sim.FailuresFired, handle, "cudasim_failures_fired")
	purego.RegisterLibFunc(&sim.Reset, handle, "cudasim_reset")
	return sim, nil
}
