package criu

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
)

// In a user namespace on the machine's network a process has the capability, and the kernel keeps no connections for it.
func TestConnectionsInAUserNamespace(t *testing.T) {
	if os.Getenv("TEST_USER_NAMESPACE") != "" {
		fmt.Println(has(unix.CAP_NET_ADMIN), KeepsConnections())
		return
	}
	hermetic.Namespaces(t, "--user", "--map-root-user")
	within := exec.Command("unshare", "--user", "--map-root-user", os.Args[0], "-test.run=^"+t.Name()+"$")
	within.Env = append(os.Environ(), "TEST_USER_NAMESPACE=1")
	output, err := within.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "true false\n")
}
