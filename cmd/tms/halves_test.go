package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tms/internal/aid/hermetic"
)

// The tests mostly wait, and share their process's environment, so every second one runs in a second process.

const ofTheSecondHalf = "TESTS_SECOND_HALF" // set in the second process

// inHalves runs this process's tests beside those of a second process, and returns an exit code for both. It makes no
// second one for single tests, or for a file that both would write.
func inHalves(m *testing.M, prepare func() error) int {
	if isSet("test.list") {
		return m.Run()
	}
	alone := []string{"run", "skip", "bench", "fuzz", "coverprofile", "gocoverdir", "cpuprofile", "memprofile",
		"blockprofile", "mutexprofile", "trace"}
	if os.Getenv(ofTheSecondHalf) != "" ||
		slices.ContainsFunc(alone, func(name string) bool { return isSet("test." + name) }) {
		return hermetic.Main(m, prepare)
	}
	list, err := exec.Command(os.Args[0], "-test.list=.").Output()
	if err != nil {
		return failed(err)
	}
	var halves [2][]string
	for i, name := range strings.Fields(string(list)) {
		halves[i%2] = append(halves[i%2], name)
	}
	pattern := func(half int) string { return "^(" + strings.Join(halves[half], "|") + ")$" }
	// Go caches no result without a log of what the tests read, which would lack what the second process reads.
	arguments := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(argument string) bool {
		return strings.HasPrefix(argument, "-test.testlogfile=") || strings.HasPrefix(argument, "-test.run=")
	})
	_ = flag.Set("test.testlogfile", "")
	second := exec.Command(os.Args[0], append([]string{"-test.run=" + pattern(1)}, arguments...)...)
	second.WaitDelay = time.Minute // for programs that it leaves behind, as in Go's own
	second.Env = append(os.Environ(), ofTheSecondHalf+"=1")
	var said bytes.Buffer
	second.Stdout, second.Stderr = &said, &said
	runtime.LockOSThread() // Pdeathsig comes when the starting thread ends
	second.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := second.Start(); err != nil {
		return failed(err)
	}
	_ = flag.Set("test.run", pattern(0))
	code := hermetic.Main(m, prepare)
	err = second.Wait()
	if err != nil || testing.Verbose() {
		fmt.Print(said.String())
	}
	if err != nil {
		return max(code, failed(fmt.Errorf("the second half of the tests: %w", err)))
	}
	return code
}

func isSet(name string) bool { return flag.Lookup(name).Value.String() != "" }

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
