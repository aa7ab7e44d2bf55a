package control_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// Whatever comes in, an accepted request is valid: within all bounds, and the same when it is sent again.
func FuzzParseRequest(f *testing.F) {
	tag, timeout := "weights", 2.5
	for _, r := range []control.Request{
		control.SteerRequest{Version: 1, Op: control.Status},
		control.SteerRequest{Version: 1, ID: 1 << 63, Op: control.Pause, Tag: &tag, Timeout: &timeout, Force: true},
		control.SteerRequest{Version: 1, Op: control.Pause, Idle: &timeout},
		control.SteerRequest{Version: 1, Op: control.Undo, Wait: 1},
		control.SteerRequest{Version: 1, Op: control.Resume, Tag: &tag, Wait: 60},
		control.SteerRequest{Version: 1, Op: control.Keep}, control.SteerRequest{Version: 2, Op: control.Keep},
		control.LendRequest{Version: 1, Op: control.Lend, Memory: 1 << 63, Import: 2},
		control.SetRequest{Version: 1, Op: control.Open, Name: "model", Confirm: true},
		control.SteerRequest{Version: 1, Op: control.Record, File: "/tmp/file"},
		control.SteerRequest{Version: 1, Op: control.Record},
		control.SteerRequest{Version: 1, Op: control.Align, Wait: 0.01, Lease: 60,
			Targets: map[string]uint64{"c0ffee:0:1": 7}},
	} {
		f.Add(bytes.TrimSuffix(control.Line(r), []byte("\n")))
	}
	for _, rubbish := range []string{
		"{\x00", "-1", "\r\r", "[0\x0e", "\"\"", "[0", "ϝ\x80", "        0", "뛀", "\t\t", "\"000\"", "0", "\v",
		"\n0", "\xf1\x8900", "[ ", "{}}", "\xf1\xf100", "\t\t\t\t", "{}0", "\n\n", "0\b", "{}A", "\x7f",
		"\"0000000\"", " ", "ꛛ曛", "褄\xe200", "{}\x00", "\n\n\n\n", " 0", "{", "  ", "ϛ\x80", "", "[", "\n",
		"\"0\"", "\"000", "[\x16",
	} {
		f.Add([]byte(rubbish))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		parsed, id, err := control.ParseRequest(line)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.Equal(t, parsed.Sent(id), parsed)
		again, _, err := control.ParseRequest(bytes.TrimSuffix(control.Line(parsed), []byte("\n")))
		require.NoError(t, err)
		require.Equal(t, parsed, again)
		r, steers := parsed.(control.SteerRequest)
		if !steers {
			return
		}
		require.Contains(t, []string{control.Status, control.Pause, control.Resume, control.Keep,
			control.Undo, control.Note, control.Move, control.Record, control.Align}, r.Op)
		for _, seconds := range []float64{r.Wait, r.Lease, r.TimeoutSeconds(), max(0, r.IdleSeconds())} {
			require.True(t, seconds >= 0 && seconds <= control.MaxSeconds)
		}
		if r.Tag != nil {
			require.NotEmpty(t, *r.Tag)
			require.NotContains(t, *r.Tag, "\x00")
		}
	})
}

func TestAHoldTakesNoEverything(t *testing.T) {
	_, _, err := control.ParseRequest([]byte(`{"version":1,"op":"pause","hold":true,"everything":true}`))
	require.ErrorContains(t, err, "takes no everything")
}

func TestLine(t *testing.T) {
	line := string(control.Line(control.Reply{Version: 1, ID: 3, OK: true, Process: json.RawMessage(`{"pid":1}`)}))
	require.Equal(t, `{"version":1,"id":3,"ok":true,"code":0,"bytes":0,"seconds":0,"process":{"pid":1}}`+"\n", line)
	broken := control.Line(control.Reply{Process: json.RawMessage("{")})
	require.True(t, json.Valid(broken), "%s", broken)
	require.Contains(t, string(broken), `"ok":false`)
}

func TestDirectories(t *testing.T) {
	require.Equal(t, []string{"/run/x/tms", "/tmp/tms-7"}, control.Directories("/run/x", "", 7))
	require.Equal(t, []string{"/var/tmp/tms-7"}, control.Directories("", "/var/tmp", 7))
	require.Equal(t, []string{"/tmp/tms-7"}, control.Directories("relative", "../tmp", 7))
	require.Equal(t, []string{"/run/user/7/tms", "/a/tms-7", "/tmp/tms-7"},
		control.AllDirectories("/run/user/7", "/a", 7))
	require.Equal(t, []string{"/a/tms", "/tmp/tms-7", "/run/user/7/tms"}, control.AllDirectories("/a", "", 7))
	require.Equal(t, []string{"/a/tms-7", "/run/user/7/tms", "/tmp/tms-7"}, control.AllDirectories("", "/a", 7))
	require.Equal(t, []string{"/a/tms", "/b/tms-7"}, control.AllDirectories("/a", "/b", 7), "apart from all others")
}

func TestMakeDirectory(t *testing.T) {
	user := os.Geteuid()
	above := t.TempDir()
	made := filepath.Join(above, "tms")
	require.ErrorIs(t, control.CheckDirectory(made, user), unix.ENOENT)
	require.NoError(t, control.MakeDirectory(made, user))
	require.NoError(t, control.MakeDirectory(made, user))
	require.ErrorContains(t, control.MakeDirectory(made, user+1), "belongs to user")
	require.ErrorContains(t, control.CheckDirectory(made, user+1), "belongs to user")
	require.NoError(t, os.Chmod(made, 0o750))
	require.ErrorContains(t, control.MakeDirectory(made, user), "chmod 700")
	require.NoError(t, os.Remove(made))
	require.NoError(t, os.Symlink(above, made))
	require.ErrorContains(t, control.MakeDirectory(made, user), "is no directory")
	require.ErrorIs(t, control.MakeDirectory(filepath.Join(above, "none", "tms-1"), user), unix.ENOENT)
}

func TestNames(t *testing.T) {
	pid, ok := control.PID(control.Name(123))
	require.True(t, ok && pid == 123)
	for _, name := range []string{"", ".sock", "0.sock", "-1.sock", "+1.sock", "01.sock", "1", "1.sock.old", "x.sock"} {
		_, ok := control.PID(name)
		require.False(t, ok, name)
	}
	require.Equal(t, "/run/tms/1.sock", control.Address("/run/tms", 9, 1))
	require.Equal(t, "/proc/thread-self/fd/9/1.sock", control.Address("/"+strings.Repeat("x", 101), 9, 1))
}
