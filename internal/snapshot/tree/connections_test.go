package tree

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// A socket of IPv6 may have an address of IPv4, as PyTorch's TCPStore has. The end that a child has is outside of a tree
// without the child.
func TestConnected(t *testing.T) {
	if !criu.KeepsConnections() {
		require.False(t, connected([]snapshot.Process{{PID: os.Getpid()}}))
		return
	}
	own := []snapshot.Process{{PID: os.Getpid()}}
	require.False(t, connected(own))
	listener, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer listener.Close()
	client, err := net.Dial("tcp4", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: listener.Addr().(*net.TCPAddr).Port}).String())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	defer server.Close()
	require.True(t, connected(own))

	end, err := client.(*net.TCPConn).File()
	require.NoError(t, err)
	child := exec.Command("sleep", "600")
	child.ExtraFiles = []*os.File{end}
	require.NoError(t, child.Start())
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	require.NoError(t, end.Close())
	require.NoError(t, client.Close())
	require.False(t, connected(own))
	require.True(t, connected(append(own, snapshot.Process{PID: child.Process.Pid})))
}
