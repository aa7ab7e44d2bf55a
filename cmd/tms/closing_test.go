package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A daemon closes every descriptor that it has not opened, those of the device aside. Contents come back, wherever they
// wait, and the program can still be steered.
func TestProgramsCloseDescriptors(t *testing.T) {
	for _, backup := range []string{"host", "sparse", "disk", "peer"} {
		t.Run(backup, func(t *testing.T) {
			ownSockets(t)
			c := exec.Command(tms, "run", "--backup", backup, "--", steeredProgram(t))
			c.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim"),
				"LD_PRELOAD=", "CUDASIM_MEMORY=256M", "CUDASIM_DEVICES=2")
			s := startProgram(t, c)
			s.do("own 16", "allocate", "serve") // the first has this backup, and the rest has its own
			for _, written := range []string{"42", "43"} {
				s.do("write " + written)
				require.Contains(t, succeeds(t, "pause", s.number()), "paused, 48.00 MiB")
				s.do("close")
				require.Contains(t, succeeds(t, "resume", s.number()), "resumed, 48.00 MiB")
				require.Equal(t, written, s.do("owned"))
				require.Equal(t, "ok", s.do("check"))
				s.do("close")
			}
		})
	}
}
