package tree

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// A socket of IPv6 may have an address of IPv4, as PyTorch's TCPStore has. The end that a child has is outside of a tree
// without the child.
func TestConnected(t *testing.T) {
	if !criu.KeepsConnections() {
		are, _ := connected([]snapshot.Process{{PID: os.Getpid()}})
		require.False(t, are)
		return
	}
	own := []snapshot.Process{{PID: os.Getpid()}}
	asked := func(processes []snapshot.Process) (is [2]bool) {
		is[0], is[1] = connected(processes)
		return is
	}
	none, all, waiting := [2]bool{}, [2]bool{true, false}, [2]bool{true, true}
	require.Equal(t, none, asked(own))
	listener, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer listener.Close()
	client, err := net.Dial("tcp4", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: listener.Addr().(*net.TCPAddr).Port}).String())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	defer server.Close()
	require.Equal(t, all, asked(own))
	require.NoError(t, client.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil {
		_, err = client.Write(make([]byte, 1<<20))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded) // the other end reads nothing
	require.Equal(t, waiting, asked(own))

	end, err := client.(*net.TCPConn).File()
	require.NoError(t, err)
	child := exec.Command("sleep", "600")
	child.ExtraFiles = []*os.File{end}
	require.NoError(t, child.Start())
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	require.NoError(t, end.Close())
	require.NoError(t, client.Close())
	require.Equal(t, none, asked(own))
	require.Equal(t, waiting, asked(append(own, snapshot.Process{PID: child.Process.Pid})))
}
