package store

import (
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
)

// killedIn is the variable by which a test starts this program once more, and says where that program puts its files.
const killedIn = "TEST_KILLED_IN"

// A process that is killed while it writes contents leaves neither names nor used space, though the file system makes
// no file without a name.
func TestKilledInTheMiddleOfASave(t *testing.T) {
	if directory := os.Getenv(killedIn); directory != "" {
		saveAndDie(t, directory)
	}
	for _, unnamed := range []string{"", "0"} {
		directory := t.TempDir()
		mounted := unix.Mount("none", directory, "tmpfs", 0, "size=64m") == nil // needs a privilege
		free := func() uint64 {
			var stat unix.Statfs_t
			require.NoError(t, unix.Statfs(directory, &stat))
			return stat.Bfree
		}
		before := free()
		victim := exec.Command(os.Args[0], "-test.run=^TestKilledInTheMiddleOfASave$")
		victim.Env = append(os.Environ(), killedIn+"="+directory, "UNNAMED="+unnamed)
		output, err := victim.CombinedOutput()
		var ended *exec.ExitError
		require.ErrorAs(t, err, &ended, "%s", output)
		require.Equal(t, syscall.SIGKILL, ended.Sys().(syscall.WaitStatus).Signal(), "%s", output)
		left, err := os.ReadDir(directory)
		require.NoError(t, err)
		require.Empty(t, left)
		if mounted {
			require.Equal(t, before, free())
			require.NoError(t, unix.Unmount(directory, 0))
		}
	}
}

// saveAndDie kills this process when a part of its contents is in a file.
func saveAndDie(t *testing.T, directory string) {
	_, driver, jobs := simulate(t, 1, "1G")
	disk := NewDisk(driver, &descriptors.Holder{}, func(string) {})
	disk.chunkSize = mib
	require.NoError(t, disk.Configure(directory, ""))
	if os.Getenv("UNNAMED") == "0" {
		defer failing("O_TMPFILE", 1, math.MaxInt64, unix.EOPNOTSUPP)()
	}
	jobs[0].Copied = func(uint64) { _ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) }
	_, err := disk.Save(jobs[0], itemsFor(spans(t, driver, 0, 32*mib), nil, -1))
	require.NoError(t, err)
	t.Fatal("it still runs")
}
