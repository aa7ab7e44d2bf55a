package control_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/vmm/stats"
)

func pointer[T any](value T) *T { return &value }

// requestLines has a request for each operation, as the files in testdata have them. A client in another language
// writes these lines, so they change only with control.Version.
var requestLines = []control.Request{
	control.SteerRequest{Op: control.Status, ID: 1},
	control.SteerRequest{Op: control.Pause, ID: 2, Tag: pointer("weights"), Timeout: pointer(2.5), Idle: pointer(0.5),
		Force: true, To: control.ToDisk, SaveAll: true, Yield: true},
	control.SteerRequest{Op: control.Pause, ID: 3, Hold: true, Lease: 60, NCCL: &control.NCCL{}},
	control.SteerRequest{Op: control.Pause, ID: 4, Everything: true, Discard: true,
		Toward: stats.Destinations{"GPU-1": {Device: "GPU-2", Room: 1 << 30}},
		NCCL:   &control.NCCL{Together: []string{"c0ffee"}, Until: 1700000000.5}},
	control.SteerRequest{Op: control.Resume, ID: 5, Tag: pointer("weights"), Wait: 60, Turn: true},
	control.SteerRequest{Op: control.Resume, ID: 6, Everything: true},
	control.SteerRequest{Op: control.Pause, ID: 27, Parts: true},
	control.SteerRequest{Op: control.Pause, ID: 33, Everything: true, To: control.ToMemory, SaveAll: true, SaveSets: true},
	control.SteerRequest{Op: control.Resume, ID: 28, Turn: true, Ahead: map[string]uint64{"GPU-1": 1 << 30}},
	control.SteerRequest{Op: control.Complete, ID: 29},
	control.SteerRequest{Op: control.Keep, ID: 7},
	control.SteerRequest{Op: control.Keep, ID: 7, User: "anna", Lent: "bert", Until: 1700003600.5},
	control.SteerRequest{Op: control.Keep, ID: 7, Own: true},
	control.SteerRequest{Op: control.Undo, ID: 8, Wait: 1, Yield: true},
	control.SteerRequest{Op: control.Move, ID: 9, Tag: pointer("cache"), To: control.ToDisk},
	control.SteerRequest{Op: control.Move, ID: 9, Everything: true, To: control.ToMemory},
	control.SteerRequest{Op: control.Note, ID: 10, Driver: &control.Driver{
		Devices: []control.DriverBytes{{UUID: "GPU-1", Bytes: 1 << 30}}, Lost: "the GPU is gone"}},
	control.SteerRequest{Op: control.Record, ID: 11, File: "/tmp/recording"},
	control.SteerRequest{Op: control.Record, ID: 12},
	control.SteerRequest{Op: control.Align, ID: 13, Lease: 60, Wait: 0.5, Targets: map[string]uint64{"c0ffee": 7}},
	control.SteerRequest{Op: control.Advance, ID: 30, Name: "model", Timeout: pointer(2.5), Back: true},
	control.LendRequest{Op: control.Lend, ID: 14, Memory: 21, Import: 22},
	control.LendRequest{Op: control.Returned, ID: 15, Memory: 21, Import: 22},
	control.LendRequest{Op: control.Hand, ID: 16},
	control.SetRequest{Op: control.Put, ID: 17, Set: 31, Name: "model", Device: "GPU-1", Chunk: 41, Bytes: 2 << 20,
		Before: 1, Node: pointer(0), To: control.ToHost, Joins: true},
	control.SetRequest{Op: control.Seal, ID: 18, Set: 31, Before: 1, Original: 30, Tensors: 2, Confirm: true},
	control.SetRequest{Op: control.Open, ID: 19, Name: "model", Confirm: true},
	control.SetRequest{Op: control.Close, ID: 20, Set: 31},
	control.SetRequest{Op: control.List, ID: 21},
	control.SetRequest{Op: control.Drop, ID: 22, Name: "model"},
	control.SetRequest{Op: control.Take, ID: 23, Node: pointer(0), Bytes: 2 << 20, Confirm: true},
	control.SetRequest{Op: control.Give, ID: 24, Node: pointer(0)},
	control.SteerRequest{Op: control.Contents, ID: 25},
	control.SteerRequest{Op: control.Park, ID: 26, User: "anna", Lease: 60},
	control.SteerRequest{Op: control.Adopt, ID: 31, Sets: []control.Adopted{{Was: []uint64{71, 72}, Set: control.KeptSet{
		ID: 31, Name: "model", Device: "GPU-1", Sealed: 1700000000000000000, Bytes: 2 << 20, Version: 3,
		Chunks: []control.KeptChunk{{ID: 41, Bytes: 2 << 20}}}}}},
	control.SetRequest{Op: control.Seal, ID: 32, Set: 31, Before: 1, Restored: 3, Nameless: true},
}

// replyLines has an answer to each request, by the ID of the request, and one refusal.
func replyLines(t *testing.T) []control.Reply {
	process, err := json.Marshal(control.ProcessState{
		PID: 4711, Command: "python train.py", Gated: true, IdleSeconds: pointer(1.5), ResumeWait: 60,
		Stats:   control.Stats{Version: "0.1", Started: true, HostAvailableBytes: pointer(uint64(1 << 34))},
		Devices: []control.Device{{Device: 0, UUID: "GPU-1"}},
	})
	require.NoError(t, err)
	sets := []control.KeptSet{{ID: 31, Name: "model", Device: "GPU-1", Sealed: 1700000000000000000,
		Chunks: []control.KeptChunk{{ID: 41, Bytes: 2 << 20, Node: pointer(0), More: []uint64{42}}}, Place: control.ToHost,
		Bytes: 4 << 20, Tensors: 2, Used: 1700000000000000000, Version: 3, Users: []int{4711}}}
	replies := []control.Reply{
		{ID: 1, OK: true, Process: process},
		{ID: 2, OK: true, Bytes: 1 << 30, Imported: 1 << 20, Seconds: 0.25, WithoutContents: 1 << 21, Moved: 1 << 29,
			Note: "nothing was ever allocated with the tag"},
		{ID: 3, OK: true, Communicators: []control.Communicator{{Name: "c0ffee", Ranks: 2, Here: 1}}},
		{ID: 4, OK: true, Bytes: 1 << 30, Seconds: 0.25, NCCL: "suspended", Stays: "NCCL has registered memory"},
		{ID: 5, Code: 2, Error: "out of memory"},
		{ID: 6, OK: true, Bytes: 1 << 30, Seconds: 0.25},
		{ID: 7, OK: true},
		{ID: 8, OK: true, Bytes: 1 << 30, Seconds: 0.25},
		{ID: 9, Code: 2, Error: "host memory is short", Host: 1 << 30, HostAvailable: 1 << 29},
		{ID: 10, OK: true},
		{ID: 11, OK: true},
		{ID: 12, OK: true, Seconds: 0.25},
		{ID: 13, OK: true, Alignment: &control.Alignment{Reached: true, Captured: true,
			Sequences: []control.Sequence{{Name: "c0ffee", Ranks: 2, Here: 1, Begun: 7, Wanted: true}}}},
		{ID: 14, OK: true, Bytes: 1 << 20, Extent: 2 << 20, Offset: 1 << 20, Tag: "weights", Device: "GPU-1"},
		{ID: 15, OK: true},
		{ID: 16, OK: true},
		{ID: 17, OK: true},
		{ID: 18, OK: true},
		{ID: 19, OK: true, Sets: sets},
		{ID: 20, OK: true},
		{ID: 21, OK: true, Sets: sets},
		{ID: 22, OK: true},
		{ID: 23, OK: true, Reserved: map[int]uint64{0: 4 << 20}},
		{ID: 24, OK: true},
		{ID: 25, OK: true, Contents: []control.Held{{Number: 51, Bytes: 64 << 20}}},
		{ID: 26, OK: true},
		{ID: 27, OK: true, Bytes: 1 << 30, Seconds: 0.25},
		{ID: 28, OK: true, Bytes: 1 << 30, Seconds: 0.25},
		{ID: 29, OK: true},
		{ID: 30, OK: true, Seconds: 0.25, Sets: sets},
		{ID: 33, OK: true, Bytes: 1 << 30, Seconds: 0.25},
		{ID: 31, OK: true, Seconds: 0.25},
		{ID: 32, OK: true, Sets: sets},
		{ID: 14, Code: 600, Error: "the memory is paused", Stopped: true},
		{ID: 7, OK: true, Ignored: []string{"colour"}},
	}
	for i := range replies {
		replies[i].Version = control.Version
	}
	return replies
}

// golden compares lines with a file of testdata, or writes that file if TMS_UPDATE_GOLDEN is set.
func golden(t *testing.T, name string, lines [][]byte) {
	path := filepath.Join("testdata", name)
	if os.Getenv("TMS_UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(path, bytes.Join(lines, nil), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(bytes.Join(lines, nil)))
}

// fieldsMissing returns the JSON fields of a struct that no line has.
func fieldsMissing(t *testing.T, of reflect.Type, lines [][]byte) (missing []string) {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name != "-" && !slices.ContainsFunc(lines, func(line []byte) bool {
			var fields map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(line, &fields))
			return fields[name] != nil
		}) {
			missing = append(missing, name)
		}
	}
	return missing
}

// The lines of each request stay as clients in other languages write them, and a process reads them as they were meant.
func TestRequestLines(t *testing.T) {
	var lines [][]byte
	for _, request := range requestLines {
		request = request.Sent(request.Identity())
		line := control.Line(request)
		lines = append(lines, line)
		parsed, id, err := control.ParseRequest(bytes.TrimSpace(line))
		require.NoError(t, err, "%s", line)
		require.Equal(t, request, parsed)
		require.Equal(t, request.Identity(), id)
	}
	golden(t, "requests.jsonl", lines)
	require.Empty(t, fieldsMissing(t, reflect.TypeFor[control.SteerRequest](), lines))
	require.Empty(t, fieldsMissing(t, reflect.TypeFor[control.LendRequest](), lines))
	require.Empty(t, fieldsMissing(t, reflect.TypeFor[control.SetRequest](), lines))
}

// "share" is a number of three kinds, by the operation and by whether there is a set.
func TestNumbersOfSetRequests(t *testing.T) {
	for _, r := range []control.SetRequest{{Op: control.Put, Set: 1, Chunk: 2}, {Op: control.Seal, Set: 1, Original: 2},
		{Op: control.Put, Held: 2}, {Op: control.Close, Held: 2}, {Op: control.Give, Held: 2}} {
		r.Version = control.Version
		line := bytes.TrimSpace(control.Line(r))
		require.Contains(t, string(line), `"share":2`)
		parsed, _, err := control.ParseRequest(line)
		require.NoError(t, err)
		require.Equal(t, control.Request(r), parsed)
	}
}

// A field of another operation is refused, unless it says nothing: a client may write all fields in each request.
func TestFieldsOfOtherOperations(t *testing.T) {
	for line, refused := range map[string]string{
		`{"version":1,"op":"pause","set":3}`:                                 "pause takes no set",
		`{"version":1,"op":"list","file":"/tmp/x"}`:                          "list takes no file",
		`{"version":1,"op":"lend","tag":"a"}`:                                "lend takes no tag",
		`{"version":1,"op":"keep","share":1}`:                                "keep takes no share",
		`{"version":1,"op":"status","set":"x"}`:                              "not understood",
		`{"version":1,"op":"status","set":0,"force":false,"tag":null}`:       "",
		`{"version":1,"op":"lend","share":1,"file":"","node":null,"wait":0}`: "",
	} {
		_, _, err := control.ParseRequest([]byte(line))
		if refused == "" {
			require.NoError(t, err, line)
		} else {
			require.ErrorContains(t, err, refused, line)
		}
	}
}

func TestReplyLines(t *testing.T) {
	var lines [][]byte
	for _, reply := range replyLines(t) {
		line := control.Line(reply)
		lines = append(lines, line)
		var parsed control.Reply
		require.NoError(t, json.Unmarshal(line, &parsed))
		require.Equal(t, reply, parsed)
	}
	golden(t, "replies.jsonl", lines)
	require.Empty(t, fieldsMissing(t, reflect.TypeFor[control.Reply](), lines))
}

// What version 0.1 wrote is still read, and means the same: its requests by a process of today, its replies by a client.
// The files of testdata/0.1 are never changed.
func TestLinesOfVersion01(t *testing.T) {
	lines := func(name string) (found [][]byte) {
		text, err := os.ReadFile(filepath.Join("testdata", "0.1", name))
		require.NoError(t, err)
		return bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	}
	for _, line := range lines("requests.jsonl") {
		request, _, err := control.ParseRequest(line)
		require.NoError(t, err, "%s", line)
		require.Empty(t, control.Unknown(line), "%s", line)
		again, err := json.Marshal(request)
		require.NoError(t, err)
		require.JSONEq(t, string(line), string(again))
	}
	for _, line := range lines("replies.jsonl") {
		var reply control.Reply
		require.NoError(t, json.Unmarshal(line, &reply), "%s", line)
		again, err := json.Marshal(reply)
		require.NoError(t, err)
		require.JSONEq(t, string(line), string(again))
	}
	hermetic.Stable[control.ProcessState](t, filepath.Join("testdata", "process.json"))
}

// A later version adds fields that an earlier one does not know: it ignores and names them, and reads the rest.
func TestFieldsOfLaterVersions(t *testing.T) {
	for line, unknown := range map[string][]string{
		`{"version":1,"op":"list","-":1}`:                             {"-"},
		`{"version":1,"op":"status","color":null}`:                    {"color"},
		`{"version":1,"op":"pause","tag":"a","b":{"c":[1]},"Tagg":0}`: {"Tagg", "b"},
		`{"version":1,"op":"pause","TAG":"a"}`:                        nil,
	} {
		require.Equal(t, unknown, control.Unknown([]byte(line)), line)
		request, _, err := control.ParseRequest([]byte(line))
		require.NoError(t, err, line)
		require.Contains(t, line, request.Operation())
	}
	require.Empty(t, control.Unknown([]byte("[]")))
	for line, refused := range map[string]string{
		`{"version":5,"op":"status"}`:   "the request has version 5 of the protocol, and this process speaks version 4",
		`{"version":1,"op":"snapshot"}`: `there is no operation "snapshot"; there are status, pause`,
	} {
		_, _, err := control.ParseRequest([]byte(line))
		require.ErrorContains(t, err, refused)
	}
}

// docs/protocol.md shows each line of the golden files, and no other.
func TestProtocolDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	var shown []string
	for line := range strings.Lines(string(document)) {
		if strings.HasPrefix(line, "{") {
			shown = append(shown, line)
		}
	}
	var golden []string
	for _, name := range []string{"requests.jsonl", "replies.jsonl"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		golden = append(golden, slices.Collect(strings.Lines(string(text)))...)
	}
	require.ElementsMatch(t, golden, shown)
	require.Contains(t, string(document), fmt.Sprintf("# The control protocol, version %d\n", control.Version))
}
