package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"tms/internal/aid/hermetic"
)

// Tries each limit at some values, or at thirty (TMS_SWEEP=full, scripts/soak.sh), before the library starts and in the
// middle of use. The host gets codes and goes on, and memory keeps its contents.
func TestNoLimitEndsTheProcess(t *testing.T) {
	hermetic.Thorough(t)
	program := compile(t, "bounds", majors[1])
	for _, limit := range []struct {
		what          string
		step          int // MiB, threads or mappings
		until, stride int // of 30; values beyond until refuse nothing
		allocations   int
	}{{"as", 60, 30, 8, 200}, {"data", 12, 30, 8, 200}, {"threads", 6, 10, 5, 60}, {"maps", 20, 19, 6, 60}} {
		if os.Getenv("TMS_SWEEP") == "full" {
			limit.until, limit.stride, limit.allocations = 30, 1, 200
		}
		for _, when := range []string{"before", "after"} {
			t.Run(limit.what+" "+when, func(t *testing.T) {
				t.Parallel()
				for i := 0; i < limit.until; i += limit.stride {
					room := strconv.Itoa(i * limit.step)
					run(t, program, []string{limit.what, when, room, strconv.Itoa(limit.allocations)},
						"CUDASIM_DEVICES=8", "CUDASIM_MEMORY=2G").succeeded(t)
				}
			})
		}
	}
}

func TestNothingIsLeftInTheProcess(t *testing.T) {
	hermetic.Thorough(t)
	program := compile(t, "presence", majors[1])
	run(t, program, []string{"features", t.TempDir()}, "CUDASIM_DEVICES=2",
		"TMS_TRACE="+filepath.Join(t.TempDir(), "trace.csv")).succeeded(t)
	run(t, program, []string{"pinned", ""}).succeeded(t)
}

func TestBookkeepingIsFull(t *testing.T) {
	hermetic.Thorough(t)
	run(t, compile(t, "limits", majors[1]), []string{"bookkeeping"}, "CUDASIM_MEMORY=64G").succeeded(t)
}

// The wait for a thread's heap ends by the clock, however long a nap takes.
func TestAStartWithCoarseTimers(t *testing.T) {
	run(t, compile(t, "naps", majors[1], "-rdynamic"), nil).succeeded(t)
}

func TestCrowd(t *testing.T) {
	hermetic.Thorough(t)
	program := compile(t, "storm", majors[1])
	for range often(2, 1) { // some threads meet while another extends
		run(t, program, []string{"crowd"}, reaching(t), "CUDASIM_MEMORY=16G", "TMS_INIT_ENABLE=1",
			"TMS_INIT_ENABLE_CPU_BACKUP=1").succeeded(t)
	}
}
