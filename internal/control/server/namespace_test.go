package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/control/server"
)

// socketVariable names the socket that TestAsksFromWithin asks, in a PID namespace of its own.
const socketVariable = "TESTED_SOCKET"

// servesVariable has TestServesWithin serve, with this TMPDIR.
const servesVariable = "TESTED_SERVES"

// TestAsksFromWithin is the client of TestNamespaces. It writes a line for each reply.
func TestAsksFromWithin(t *testing.T) {
	path := os.Getenv(socketVariable)
	if path == "" {
		t.Skip("TestNamespaces runs it")
	}
	socket, err := net.Dial("unix", path)
	require.NoError(t, err)
	replies := bufio.NewScanner(socket)
	for _, r := range []control.SteerRequest{{Op: control.Status}, {Op: control.Pause, Discard: true},
		{Op: control.Keep}} {
		r.Version = control.Version
		_, err = socket.Write(control.Line(r))
		require.NoError(t, err)
		require.True(t, replies.Scan())
		_, _ = os.Stdout.Write(append(replies.Bytes(), '\n'))
	}
}

// TestServesWithin is the process of TestNamespaceAround, which has number 1. It ends with its standard input.
func TestServesWithin(t *testing.T) {
	temporary := os.Getenv(servesVariable)
	if temporary == "" {
		t.Skip("TestNamespaceAround runs it")
	}
	f := &fake{temporary: temporary}
	require.NoError(t, server.New(f).Serve())
	_, _ = os.Stdout.WriteString("serves\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A client whose PID namespace contains the process's may ask for everything.
func TestNamespaceAround(t *testing.T) {
	var kernel unix.Utsname
	require.NoError(t, unix.Uname(&kernel))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(kernel.Release[:]), "%d.%d", &major, &minor)
	require.NoError(t, err)
	if os.Geteuid() != 0 || major < 6 || major == 6 && minor < 11 {
		t.Skip("only Linux 6.11 shows it, and only without a user namespace between the two")
	}
	temporary := t.TempDir()
	within := exec.Command(os.Args[0], "-test.run=^TestServesWithin$")
	within.Env = append(os.Environ(), servesVariable+"="+temporary)
	within.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	input, err := within.StdinPipe()
	require.NoError(t, err)
	output, err := within.StdoutPipe()
	require.NoError(t, err)
	if err = within.Start(); os.IsPermission(err) {
		t.Skipf("no PID namespaces here: %v", err)
	}
	require.NoError(t, err)
	_, err = bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)

	socket, err := net.Dial("unix", control.Directories("", temporary, 0)[0]+"/"+control.Name(1))
	require.NoError(t, err)
	_, err = socket.Write(control.Line(control.SteerRequest{Version: control.Version, Op: control.Pause}))
	require.NoError(t, err)
	var reply control.Reply
	require.NoError(t, json.NewDecoder(socket).Decode(&reply))
	require.True(t, reply.OK, reply.Error)
	require.NoError(t, socket.Close())
	require.NoError(t, input.Close())
	_, _ = io.Copy(io.Discard, output)
	_ = within.Wait()
}

// A process of the same user in another PID namespace, below this one, gets the status alone.
func TestNamespaces(t *testing.T) {
	f := serve(t)
	directory := control.Directories("", f.temporary, os.Geteuid())[0]
	ask := func() (replies []control.Reply) {
		t.Helper()
		within := exec.Command(os.Args[0], "-test.run=^TestAsksFromWithin$")
		within.Env = append(os.Environ(), socketVariable+"="+directory+"/"+control.Name(os.Getpid()))
		within.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		if user := os.Geteuid(); user != 0 {
			within.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
			within.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: 1}}
		}
		output, err := within.Output()
		if os.IsPermission(err) {
			t.Skipf("no PID namespaces here: %v", err)
		}
		require.NoError(t, err, "%s", output)
		for lines, left := 0, output; lines < 3; lines++ {
			var reply control.Reply
			advance, line, _ := bufio.ScanLines(left, true)
			require.NoError(t, json.Unmarshal(line, &reply), "%s", output)
			replies, left = append(replies, reply), left[advance:]
		}
		return replies
	}
	replies := ask()
	require.True(t, replies[0].OK)
	for _, reply := range replies[1:] {
		require.False(t, reply.OK)
		require.Contains(t, reply.Error, "TMS_CONTROL_ANY_NAMESPACE=1")
	}
	f.with(func() { require.Empty(t, f.tasks) })

	f.with(func() { f.anyNamespace = true })
	for _, reply := range ask() {
		require.True(t, reply.OK, reply.Error)
	}

	f.with(func() { f.anyNamespace = false })
	c, err := client.Dial(os.Getpid())
	require.NoError(t, err)
	defer c.Close()
	require.True(t, do(t, c, control.SteerRequest{Op: control.Pause}).OK)
}
