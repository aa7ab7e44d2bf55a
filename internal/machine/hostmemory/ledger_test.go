package hostmemory

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newLedger(t *testing.T) *Ledger {
	directory := t.TempDir()
	return &Ledger{Directory: func() (string, error) { return directory, nil }}
}

// A promise is what is not touched of it, until it ends.
func TestALedger(t *testing.T) {
	l := newLedger(t)
	var promises []*Promise
	sum := func() (bytes uint64) {
		for _, p := range l.Promised() {
			require.Equal(t, os.Getpid(), p.PID)
			bytes += p.Bytes
		}
		return bytes
	}
	for range 5 {
		p, _ := l.Promise(10 * page)
		require.NotNil(t, p)
		promises = append(promises, p)
	}
	require.EqualValues(t, 50*page, sum())
	require.EqualValues(t, 4*page, promises[2].Touched(4*page))
	require.EqualValues(t, 46*page, sum())
	require.EqualValues(t, 6*page, promises[2].Touched(40*page))
	for _, p := range slices.Backward(promises) {
		p.End()
		p.End()
	}
	require.Zero(t, sum())
	p, _ := l.Promise(0)
	p.End()
}

// A process finds another process's promise until that process has ended.
func TestTwoProcessesHaveOneLedger(t *testing.T) {
	l := newLedger(t)
	directory, _ := l.Directory()
	other := exec.Command("python3", "-c", `
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, os.getpid() << 40, 7, 0)
fcntl.fcntl(file, 37, lock) # F_OFD_SETLK
print(flush=True)
sys.stdin.read()
`, directory+"/hostmemory")
	in, err := other.StdinPipe()
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	mine, _ := l.Promise(3 * page)
	found := l.Promised()
	slices.SortFunc(found, func(a, b Promised) int { return int(a.Bytes) - int(b.Bytes) })
	require.Equal(t, []Promised{{os.Getpid(), 3 * page}, {other.Process.Pid, 7 * page}}, found)
	require.NoError(t, in.Close())
	require.NoError(t, other.Wait())
	require.Equal(t, []Promised{{os.Getpid(), 3 * page}}, l.Promised())
	mine.End()
	require.Empty(t, l.Promised())
}

// A process that is stopped while it looks holds others up for a moment only.
func TestAStoppedLook(t *testing.T) {
	l := newLedger(t)
	file, err := l.open()
	require.NoError(t, err)
	require.NoError(t, lock(file, unix.F_WRLCK, 0, 1))
	p, _ := l.Promise(page)
	require.NotNil(t, p)
	p.End()
	require.NoError(t, unix.Close(file))
}

// A promise of more memory than there is is refused, with or without a file.
func TestTooMuchIsRefused(t *testing.T) {
	if Available("self", nil) == math.MaxUint64 {
		t.Skip("nothing limits the host memory here")
	}
	for _, l := range []*Ledger{nil, newLedger(t), {Directory: func() (string, error) { return "/nonexistent", nil }}} {
		p, available := l.Promise(1 << 60)
		require.Nil(t, p)
		require.Less(t, available, uint64(1<<60))
		require.Empty(t, l.Promised())
		p, _ = l.Promise(page)
		require.NotNil(t, p)
		p.End()
	}
}
