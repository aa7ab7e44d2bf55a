package checkpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// margin is how much more than the driver's part has taken must be free on each of its GPUs before a restore.
// A restore needed at most 6 MiB more than NVML's figure says (H200, driver 580.159.04, 2026-11-27;
// pymodule/tests/gpu/test_restore_room.py prints it).
const margin = 64 << 20

// Margin returns the margin on a GPU, by its memory. A small GPU has small contexts.
func Margin(total uint64) uint64 { return min(margin, total/128) }

// trial counts restores, each made after the look, beside a program that takes all free memory of the GPU and gives it
// back at random. pymodule/tests/gpu/test_restore_room.py counts it.
type trial struct {
	driver, gpu    string
	restores, lost int // no restores if it was not counted yet
}

var hostile = trial{driver: "580.159.04", gpu: "H200", restores: 170, lost: 43}

// Risk says what can still lose a process, and how often it did.
func Risk() string {
	const what = "a program that takes device memory in the moment of the driver's restore can still lose the process"
	if hostile.restores == 0 {
		return what + "; how often has not been counted yet"
	}
	return fmt.Sprintf("%s: %d of %d were lost beside one that took and gave all free memory at random (%s, driver %s)",
		what, hostile.lost, hostile.restores, hostile.gpu, hostile.driver)
}

// newestTried is the newest driver, by its first number, that was tried with tms (docs/what-stays.md has a table).
const newestTried = 580

// Override is the variable that has tms use the driver's checkpoint where it would refuse to.
const Override = "TMS_DRIVER_CHECKPOINT"

// Overridden reports whether the user takes the risk.
func Overridden() bool {
	given := strings.ToLower(os.Getenv(Override))
	return given == "1" || given == "true" || given == "yes"
}

var known = map[int]string{
	595: "on 595.71.05 the whole machine hung when a process was killed that had been restored (NVIDIA/cuda-checkpoint, " +
		"issue 53)",
	610: "on 610.57.04 the driver's lock ended a process with SIGSEGV (NVIDIA/cuda-checkpoint, issue 58)",
}

// Untried returns why a driver's checkpoint is not used by itself, for its version as NVML reports it, or "" if it is.
func Untried(version string) string {
	first, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(first)
	if err == nil && major <= newestTried {
		return ""
	}
	words := fmt.Sprintf("the checkpoint of driver %q has not been tried with tms, which knows drivers up to %d", version,
		newestTried)
	if why := known[major]; why != "" {
		words += "; " + why
	}
	return words
}
