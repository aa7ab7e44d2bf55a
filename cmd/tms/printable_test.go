package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// obeyed has what a terminal takes as commands: in one byte, in one character of two bytes, and a line that starts on
// the left.
const obeyed = "\x1b[2J\x1b]0;title\x07\u009b31m\rtms: all is well\n\u202e\x7f"

// manner makes the test's own program a process that listens and answers in this manner: it says such text, and
// refuses, agrees, or agrees and works; or it is slow; or it agrees, and has a later or an earlier library.
const manner = "TESTS_MANNER"

func init() {
	switch os.Getenv(manner) {
	case "":
	case "slow":
		answerWith(slowly())
	default:
		answerWith(rudely(os.Getenv(manner)))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func answerWith(answer func(control.SteerRequest) control.Reply) {
	directory := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms")
	must(control.MakeDirectory(directory, os.Geteuid()))
	listener, err := net.Listen("unix", filepath.Join(directory, control.Name(os.Getpid())))
	must(err)
	fmt.Println("listens")
	for {
		connection, err := listener.Accept()
		must(err)
		go func() {
			for lines := bufio.NewScanner(connection); lines.Scan(); {
				request, id, err := control.ParseRequest(lines.Bytes())
				must(err)
				reply := answer(request.(control.SteerRequest))
				reply.Version, reply.ID = control.Version, id
				if os.Getenv(manner) == "earlier" {
					if reply.Version = 1; !understood(lines.Bytes()) {
						reply = control.Reply{Version: 1, ID: id, Code: int(cuda.InvalidValue), Error: "not understood"}
					}
				}
				line := control.Line(reply)
				if os.Getenv(manner) == "later" {
					line = append([]byte(`{"later":{"more":[1]},`), line[1:]...)
				}
				_, _ = connection.Write(line)
			}
		}()
	}
}

// understood reports whether a library of version 0.1, which refused all fields that it did not know, took a request.
func understood(line []byte) bool {
	var given control.SteerRequest
	var fields map[string]any
	must(json.Unmarshal(line, &given))
	must(json.Unmarshal(line, &fields))
	known := map[string]string{
		control.Pause:  "tag timeout idle force hold lease everything to discard save_all toward yield nccl",
		control.Resume: "tag wait everything turn", control.Undo: "wait yield", control.Move: "tag everything to"}
	for field := range fields {
		if !slices.Contains(strings.Fields("version id op "+known[given.Op]), field) {
			return false
		}
	}
	return given.Version == 1
}

// ownState makes the part of a reply that has the process's state.
func ownState(state control.ProcessState) json.RawMessage {
	state.PID, state.Gated = os.Getpid(), true
	text, err := json.Marshal(state)
	must(err)
	return text
}

func rudely(manner string) func(control.SteerRequest) control.Reply {
	idle, doing, part := 1e6, "", &stats.Progress{Operation: obeyed, Total: 1}
	if manner == "works" {
		doing = obeyed
	}
	tags := []stats.Tag{{Tag: obeyed, LiveBytes: 1, PhysicalBytes: 1, PausedBytes: 1}}
	if manner == "repeats" {
		for i := range tagsMost {
			tags = append(tags, tags[0], stats.Tag{Tag: strconv.Itoa(i)})
		}
	}
	state := ownState(control.ProcessState{Command: obeyed, Doing: doing, IdleSeconds: &idle, Stays: obeyed,
		Stats: control.Stats{Version: obeyed, Stats: stats.Stats{Devices: []stats.Device{{UUID: obeyed, Progress: part,
			Tags: tags}}}},
		Devices: []control.Device{{UUID: obeyed}},
		Account: &control.Account{Others: []control.Other{{Library: obeyed, Kind: obeyed, Bytes: 1}}}})
	return func(r control.SteerRequest) control.Reply {
		reply := control.Reply{OK: true, Process: state, Bytes: 1, NCCL: obeyed, Stays: obeyed}
		if r.Op != control.Status && manner == "refuses" {
			reply.OK, reply.Code, reply.Error = false, int(cuda.NotSupported), obeyed
		}
		return reply
	}
}

// answering starts such a process.
func answering(t *testing.T, how string, environment ...string) *steered {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(append(os.Environ(), manner+"="+how), environment...)
	s := startProgram(t, c)
	require.Equal(t, "listens", s.line())
	return s
}

// What a process says of itself, or how it refuses, does nothing to the terminal on which it is printed.
func TestPrintable(t *testing.T) {
	ownSockets(t)
	start := func(manner string) string { return answering(t, manner, "TORCHELASTIC_RUN_ID="+obeyed).number() }
	refuses, agrees, works := start("refuses"), start("agrees"), start("works")
	harmless := func(words string, arguments ...string) string {
		t.Helper()
		out, told, _ := command(t, arguments...)
		if strings.ContainsFunc(out+told, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) {
			t.Errorf("%v: %q", arguments, out+told)
		}
		require.Contains(t, out+told, words, "%v", arguments)
		return out
	}
	const printed = "[2J"
	for _, arguments := range [][]string{{"pause", refuses}, {"resume", refuses}, {"pause", "--dry-run", refuses},
		{"resume", "--dry-run", refuses}, {"swap", agrees, refuses}, {"swap", refuses, agrees},
		{"swap", "--dry-run", refuses, agrees}, {"idle", refuses}, {"record", refuses, "--for", "1ms"}, {"ps"},
		{"ps", "--bytes"}, {"pause", "--job", obeyed}, {"pause", "--job", "another"}, {"__complete", "pause", ""},
		{"pause", agrees}, {"resume", agrees}} {
		harmless(printed, arguments...)
	}
	// In JSON the text is unchanged.
	states := parsed[[]control.ProcessState](t, harmless("", "ps", "--json"))
	i := slices.IndexFunc(states, func(s control.ProcessState) bool { return strconv.Itoa(s.PID) == works })
	require.Equal(t, obeyed, states[i].Command)
	require.Equal(t, obeyed, states[i].Stats.Devices[0].Tags[0].Tag)

	// The name of the process's file.
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	named := filepath.Join(t.TempDir(), "\x1b"+printed)
	require.NoError(t, os.Symlink("/", named))
	for _, asJSON := range []bool{false, true} {
		harmless(printed, "doctor", "--json="+strconv.FormatBool(asJSON), named+sleep)
	}

	// The name of a thread, in a real program.
	c := exec.Command(tms, "run", "--", steeredProgram(t))
	c.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim"),
		"LD_PRELOAD=")
	s := startToListen(t, c)
	s.do("name \x1b[31mX\x1b]0;o\x07", "busy 600000")
	require.Eventually(t, func() bool {
		out, errors_, _ := command(t, "pause", "--timeout", "0.1", s.number())
		return strings.Contains(out+errors_, "[31mX")
	}, time.Minute, 5*time.Millisecond)
	harmless("[31mX", "pause", "--timeout", "0.1", s.number())
}
