package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sleeping starts a process with this environment alone, and returns once it has it.
func sleeping(t *testing.T, environment ...string) (pid int) {
	t.Helper()
	path, err := exec.LookPath("sleep")
	require.NoError(t, err)
	c := exec.Command(path, "600")
	c.Env = append(environment, "LAST=1")
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	require.Eventually(t, func() bool { // its environment appears a moment after its start
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.Process.Pid))
		return strings.HasSuffix(string(text), "LAST=1\x00")
	}, time.Minute, time.Millisecond)
	return c.Process.Pid
}

func TestJobsOf(t *testing.T) {
	for names, environment := range map[string][]string{
		"run":     {"TORCHELASTIC_RUN_ID=run"},
		"a:1":     {"TORCHELASTIC_RUN_ID=none", "MASTER_ADDR=a", "MASTER_PORT=1"},
		"space@1": {"PMIX_NAMESPACE=space@1", "OMPI_COMM_WORLD_SIZE=2"},
		"5":       {"SLURM_JOB_ID=5", "PMIX_NAMESPACE=other"},
		"5 a:1":   {"SLURM_JOB_ID=5", "MASTER_ADDR=a", "MASTER_PORT=1"},
		"":        {"MASTER_ADDR=a"},
	} {
		require.Equal(t, names, strings.Join(JobsOf(sleeping(t, environment...)), " "))
	}
}
