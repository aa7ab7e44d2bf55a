package trace_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/report/trace"
)

// file returns what preload/watch/recording.c would have written.
func file(version uint32, records ...trace.Record) []byte {
	var made bytes.Buffer
	made.WriteString("TMSTRACE")
	for _, value := range []any{version, uint32(42), uint64(5e9), uint64(1_700_000_005_000_000_000), int64(3600),
		[3]uint64{}, records} {
		_ = binary.Write(&made, binary.LittleEndian, value)
	}
	return made.Bytes()
}

var life = []trace.Record{
	{Kind: trace.Made, Flags: trace.FlagPausable, Thread: 7, Time: 6e9, Address: 0x100, Size: 8, Stream: 3, Tag: 1},
	{Kind: trace.Freed, Thread: 7, Time: 7e9, Address: 0x900}, // from before the recording
	{Kind: trace.Freed, Flags: trace.FlagStream, Thread: 7, Time: 7e9, Address: 0x100, Stream: 4},
	{Kind: trace.Unfreed, Thread: 7, Time: 7e9, Address: 0x100},
	{Kind: trace.Begin, Flags: uint8(trace.Pause), Thread: 1, Time: 7e9},
	{Kind: trace.Refused, Thread: 7, Time: 8e9, Size: 5, Other: 2},
	{Kind: trace.Made, Thread: 8, Time: 8e9, Address: 0x100, Size: 9}, // the previous block is gone
	{Kind: trace.Made, Flags: trace.FlagBlock, Thread: 8, Time: 8e9, Address: 0x300, Size: 1, Pool: 2},
	{Kind: trace.Made, Flags: trace.FlagBlock, Thread: 8, Time: 8e9, Address: 0x200, Size: 2, Pool: 2},
	{Kind: trace.PoolDestroyed, Thread: 8, Time: 9e9, Pool: 2},
	{Kind: trace.Made, Flags: trace.FlagMapped, Thread: 8, Time: 9e9, Address: 0x1000, Size: 0x200}, // not replayed
	{Kind: trace.Freed, Flags: trace.FlagMapped, Thread: 8, Time: 9e9, Address: 0x1000, Size: 0x200},
}

func TestRecordsAsATrace(t *testing.T) {
	got, err := trace.Read("some", bytes.NewReader(append(file(1, life...), make([]byte, 640)...)))
	require.NoError(t, err)
	want := []trace.Event{
		{Action: trace.Allocate, Block: 1, Size: 8, Stream: 3},
		{Action: trace.Free, Block: 1, Size: 8, Stream: 4},
		{Action: trace.Allocate, Block: 2, Size: 8, Stream: 3},
		{Action: trace.Failure, Size: 5},
		{Action: trace.Free, Block: 2, Size: 8, Stream: 3},
		{Action: trace.Allocate, Block: 3, Size: 9},
		{Action: trace.Allocate, Block: 4, Size: 1},
		{Action: trace.Allocate, Block: 5, Size: 2},
		{Action: trace.Free, Block: 5, Size: 2}, // by address
		{Action: trace.Free, Block: 4, Size: 1},
	}
	require.Equal(t, &trace.Trace{Name: "some", Blocks: 5, Events: want}, got)
}

func TestRecordsThatEndEarly(t *testing.T) {
	whole := file(1, life...)
	text := append(file(1, trace.Record{Kind: trace.Text, Size: 100, Tag: 1}), make([]byte, 64)...) // one of two parts
	for _, cut := range [][]byte{whole[:64], whole[:64+64*3+17], text} {
		got, err := trace.Read("cut", bytes.NewReader(cut))
		require.NoError(t, err)
		require.LessOrEqual(t, len(got.Events), 2)
	}
}

func TestMalformedRecords(t *testing.T) {
	for words, text := range map[string][]byte{
		"version 9":                  file(9),
		"the kind of record 1":       file(1, trace.Record{Kind: 77}),
		"the kind of record 2":       file(1, life[0], trace.Record{Kind: trace.Text, Size: 1 << 40}),
		"it does not begin with TMS": []byte("TMSTRAC"),
	} {
		_, err := trace.NewRecords("bad", bytes.NewReader(text))
		if err == nil {
			_, err = trace.Read("bad", bytes.NewReader(text))
		}
		require.ErrorIs(t, err, trace.ErrMalformed)
		require.ErrorContains(t, err, words)
		require.True(t, strings.HasPrefix(err.Error(), "bad: "))
	}
}
