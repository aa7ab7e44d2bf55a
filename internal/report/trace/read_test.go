package trace_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/report/trace"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

func read(t *testing.T, lines ...string) (*trace.Trace, error) {
	t.Helper()
	return trace.Read("some.csv", strings.NewReader(strings.Join(append([]string{trace.Header}, lines...), "\n")))
}

func TestRead(t *testing.T) {
	got, err := read(t,
		"1,10:00:00.000001,allocate,0x7f00,1000,0x0",
		"2,10:00:00:000002,allocate,7e00,18446744073709551615,2",
		"1,x,free,0x7f00,1000,0x0",
		"1,x,allocate failure,(nil),5,0xff\r",
		"1,x,allocate,0x7f00,3,0",
		"1,x,free,0x7e00,0,2",
		"1,x,allocate,(nil),0,0",
		"1,x,free,0x0,0,0",
		"")
	require.NoError(t, err)
	require.Equal(t, &trace.Trace{Name: "some.csv", Blocks: 3, Events: []trace.Event{
		{Action: trace.Allocate, Block: 1, Size: 1000},
		{Action: trace.Allocate, Block: 2, Size: ^uint64(0), Stream: 2},
		{Action: trace.Free, Block: 1, Size: 1000},
		{Action: trace.Failure, Size: 5, Stream: 255},
		{Action: trace.Allocate, Block: 3, Size: 3},
		{Action: trace.Free, Block: 2, Size: ^uint64(0), Stream: 2},
		{Action: trace.Allocate},
		{Action: trace.Free},
	}}, got)
}

func TestATraceOfNothing(t *testing.T) {
	got, err := read(t)
	require.NoError(t, err)
	require.Empty(t, got.Events)
}

func TestMalformed(t *testing.T) {
	const good = "1,t,allocate,0x100,8,0x0"
	for name, c := range map[string]struct {
		lines  []string
		line   int
		reason string
	}{
		"missing field":      {[]string{good, "1,t,allocate,0x200,8"}, 3, "5 fields"},
		"one field more":     {[]string{"1,t,allocate,0x200,8,0,0"}, 2, "7 fields"},
		"blank line":         {[]string{"", good}, 2, "1 fields"},
		"unknown action":     {[]string{"1,t,realloc,0x200,8,0"}, 2, `"realloc"`},
		"negative size":      {[]string{"1,t,allocate,0x200,-8,0"}, 2, `Size "-8"`},
		"garbled size":       {[]string{"1,t,allocate,0x200,8k,0"}, 2, `Size "8k"`},
		"empty size":         {[]string{"1,t,allocate,0x200,,0"}, 2, `Size ""`},
		"huge size":          {[]string{"1,t,allocate,0x200,18446744073709551616,0"}, 2, "64 bits"},
		"garbled pointer":    {[]string{"1,t,allocate,0xzz,8,0"}, 2, `Pointer "0xzz"`},
		"negative pointer":   {[]string{"1,t,allocate,-1,8,0"}, 2, `Pointer "-1"`},
		"empty pointer":      {[]string{"1,t,allocate,,8,0"}, 2, `Pointer ""`},
		"garbled stream":     {[]string{"1,t,allocate,0x200,8,default"}, 2, `Stream "default"`},
		"octal stream":       {[]string{"1,t,allocate,0x200,8,0o7"}, 2, `Stream "0o7"`},
		"garbled thread":     {[]string{"main,t,allocate,0x200,8,0"}, 2, `Thread "main"`},
		"unknown free":       {[]string{good, "1,t,free,0x200,8,0"}, 3, "0x200, which is not live"},
		"double free":        {[]string{good, "1,t,free,0x100,8,0", "1,t,free,0x100,8,0"}, 4, "not live"},
		"double allocate":    {[]string{good, good}, 3, "live since line 2"},
		"size of a free":     {[]string{good, "1,t,free,0x100,9,0"}, 3, "line 2 allocated 8"},
		"allocate at 0":      {[]string{"1,t,allocate,0x0,8,0"}, 2, "pointer 0"},
		"a line without end": {[]string{good, strings.Repeat("1", 5000)}, 3, "more than 4096"},
		"binary":             {[]string{"\x00\xff"}, 2, "1 fields"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, c.lines...)
			require.ErrorIs(t, err, trace.ErrMalformed)
			require.ErrorContains(t, err, fmt.Sprintf("some.csv:%d: ", c.line))
			require.ErrorContains(t, err, c.reason)
		})
	}
	for _, text := range []string{"", "\n", "thread,time,action,pointer,size,stream\n", "1,t,allocate,0x100,8,0\n"} {
		_, err := trace.Read("other.csv", strings.NewReader(text))
		require.ErrorIs(t, err, trace.ErrMalformed, "%q", text)
		require.ErrorContains(t, err, "other.csv:1: ")
	}
}

func TestFiles(t *testing.T) {
	text := []byte(trace.Header + "\n1,t,allocate,0x100,8,0\n")
	var pack bytes.Buffer
	writer := gzip.NewWriter(&pack)
	_, err := writer.Write(text)
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	folder := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		return path
	}
	for _, path := range []string{write("a.csv", text), write("a.csv.gz", pack.Bytes())} {
		got, err := trace.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, path, got.Name)
		require.Len(t, got.Events, 1)
	}
	for name, data := range map[string][]byte{"text.gz": text, "cut.gz": pack.Bytes()[:pack.Len()-9], "empty.gz": nil} {
		_, err := trace.ReadFile(write(name, data))
		require.ErrorIs(t, err, trace.ErrMalformed, name)
		require.ErrorContains(t, err, name+":")
	}
	_, err = trace.ReadFile(filepath.Join(folder, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzRead(f *testing.F) {
	f.Add(trace.Header + "\n1,t,allocate,0x100,8,0\n1,t,free,0x100,8,0\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := trace.Read("fuzz", strings.NewReader(text))
		if err != nil {
			return
		}
		live := make([]bool, got.Blocks+1)
		for i, e := range got.Events {
			if e.Action == trace.Failure || e.Block == 0 {
				continue
			}
			if live[e.Block] == (e.Action == trace.Allocate) {
				t.Fatalf("event %d: %v of block %d, live: %v", i, e.Action, e.Block, live[e.Block])
			}
			live[e.Block] = e.Action == trace.Allocate
		}
	})
}
