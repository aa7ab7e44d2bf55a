package wrap_test

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool/wrap"
)

// lines reads a log and checks what is the same in all of its lines.
func lines(t *testing.T, text string) [][]string {
	t.Helper()
	rows, err := csv.NewReader(bytes.NewBufferString(text)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"Thread", "Time", "Action", "Pointer", "Size", "Stream"}, rows[0])
	for _, row := range rows[1:] {
		thread, err := strconv.Atoi(row[0])
		require.NoError(t, err)
		require.NoError(t, syscall.Tgkill(syscall.Getpid(), thread, 0), "a thread of this process")
		require.Regexp(t, `^[0-2]\d:[0-5]\d:[0-5]\d\.\d{6}$`, row[1])
	}
	return rows[1:]
}

func TestLog(t *testing.T) {
	var text bytes.Buffer
	p := wrap.NewLog(beneath(t), &text)
	first := malloc(t, p, 1000, 0)
	second := malloc(t, p, 5000, 0x7f3a)
	_, err := p.Malloc(1<<20, 7)
	require.Error(t, err)
	require.NoError(t, p.Free(first))
	// Nothing happens in these.
	malloc(t, p, 0, 0)
	require.NoError(t, p.Free(0))
	require.Error(t, p.Free(first))

	third := malloc(t, p, 300<<10, 1)
	require.NoError(t, p.Destroy())
	require.NoError(t, p.Destroy())

	pointer := func(address uintptr) string { return fmt.Sprintf("0x%x", address) }
	want := [][]string{
		{"allocate", pointer(first), "1000", "0x0"},
		{"allocate", pointer(second), "5000", "0x7f3a"},
		{"allocate failure", "0x0", "1048576", "0x7"},
		{"free", pointer(first), "1000", "0x0"},
		{"allocate", pointer(third), "307200", "0x1"},
		{"free", pointer(second), "5000", "0x7f3a"},
		{"free", pointer(third), "307200", "0x1"},
	}
	rows := lines(t, text.String())
	require.Len(t, rows, len(want))
	for i, row := range rows {
		require.Equal(t, want[i], row[2:])
	}
	require.NoError(t, p.Err())
}

func TestLogOfThreadsIsInOrder(t *testing.T) {
	var text bytes.Buffer
	p := wrap.NewLog(beneath(t), &text)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				b, err := p.Malloc(1<<10, 0)
				if err == nil {
					err = p.Free(b.Address)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	live := map[string]bool{}
	rows := lines(t, text.String())
	require.Len(t, rows, 2*4*500)
	for _, row := range rows {
		require.Equal(t, row[2] == "free", live[row[3]], "%v", row)
		live[row[3]] = row[2] == "allocate"
	}
}

// full is a writer that has room for some lines.
type full struct{ room int }

func (f *full) Write(line []byte) (int, error) {
	if f.room == 0 {
		return 0, errors.New("disk full")
	}
	f.room--
	return len(line), nil
}

func TestLogThatCannotBeWritten(t *testing.T) {
	p := wrap.NewLog(beneath(t), &full{room: 2})
	address := malloc(t, p, 1, 0)
	require.NoError(t, p.Err())
	require.NoError(t, p.Free(address), "the pool works on")
	require.ErrorContains(t, p.Err(), "disk full")
	require.Zero(t, p.Stats().Blocks)
}
