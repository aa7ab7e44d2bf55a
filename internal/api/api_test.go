package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/sets"
	"tms/vmm/cuda"
)

// asks makes the test's own program a client of the socket that it names.
const asks = "TESTS_ASKS"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asks); socket != "" {
		reply, err := clientOf(socket).Get("http://tms/v1/version")
		if err != nil {
			fmt.Print(err)
			os.Exit(0)
		}
		text, _ := io.ReadAll(reply.Body)
		fmt.Printf("%d %s", reply.StatusCode, text)
		os.Exit(0)
	}
	os.Exit(hermetic.Main(m))
}

func clientOf(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
}

// fakeSets has one set.
type fakeSets struct{ set *control.KeptSet }

func (f *fakeSets) List() ([]control.KeptSet, error) {
	if f.set == nil {
		return []control.KeptSet{}, nil
	}
	return []control.KeptSet{*f.set}, nil
}

func (f *fakeSets) named(name string) error {
	if f.set == nil || f.set.Name != name {
		return cuda.Refuse(cuda.SymbolNotFound, "there is no set %q", name)
	}
	return nil
}

func (f *fakeSets) Drop(name string) error {
	err := f.named(name)
	if err == nil {
		f.set = nil
	}
	return err
}

func (f *fakeSets) Move(name, to string) error {
	if to == control.ToDisk {
		return errors.New("a process has it open")
	}
	err := f.named(name)
	if err == nil {
		f.set.Place = to
	}
	return err
}

func (f *fakeSets) Advance(_ context.Context, name string, back bool, within time.Duration) (all []sets.Follower,
	err error) {
	if f.named(name) != nil {
		return nil, nil
	}
	one := sets.Follower{PID: 4711, Version: 3}
	if back {
		one.Error = fmt.Sprint("it has kept no version before, after ", within)
	}
	return []sets.Follower{one}, nil
}

// lines collects what is written, by any goroutine.
type lines struct {
	sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(text []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(text)
}

// serve starts a server at a socket.
func serve(t *testing.T, of *fakeSets) (socket string, audit *lines) {
	t.Helper()
	socket, audit = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "api.sock"), &lines{}
	listener, err := ListenUnix(socket)
	require.NoError(t, err)
	server := NewServer(Options{Context: t.Context(), Version: "1.2.3", Sets: of, Audit: audit})
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
	})
	return socket, audit
}

func TestKept(t *testing.T) {
	socket, audit := serve(t, &fakeSets{&control.KeptSet{Name: "a/b", Place: control.ToHost}})
	for _, step := range []struct {
		method, path, body string
		status             int
		words              string
	}{
		{"GET", "/v1/kept", "", 200, `"name":"a/b"`},
		{"POST", "/v1/kept/a%2Fb", `{"to":"device"}`, 200, `"place":"` + sets.Device + `"`},
		{"POST", "/v1/kept/a%2Fb", `{"to":"moon"}`, 400, "give host, disk or device"},
		{"POST", "/v1/kept/a%2Fb", `{"to":"disk"}`, 409, "a process has it open"},
		{"POST", "/v1/kept/none", `{"to":"host"}`, 404, `there is no set \"none\"`},
		{"POST", "/v1/kept/a%2Fb/advance", "{}", 200, `{"followers":[{"pid":4711,"version":3}]}`},
		{"POST", "/v1/kept/a%2Fb/advance", `{"back":true,"timeout":2}`, 409, "no version before, after 2s"},
		{"POST", "/v1/kept/a%2Fb/advance", `{"timeout":-1}`, 400, "timeout is -1"},
		{"POST", "/v1/kept/none/advance", "{}", 404, "no process follows this set"},
		{"DELETE", "/v1/kept/none", "", 404, "there is no set"},
		{"DELETE", "/v1/kept/a%2Fb", "", 200, `{"sets":[]}`},
		{"GET", "/openapi.json", "", 200, `"openapi":"3.1.0"`},
	} {
		request, err := http.NewRequest(step.method, "http://tms"+step.path, strings.NewReader(step.body))
		require.NoError(t, err)
		reply, err := clientOf(socket).Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(reply.Body)
		require.NoError(t, err)
		require.Equal(t, step.status, reply.StatusCode, "%s", text)
		require.Contains(t, string(text), step.words)
	}
	audit.Lock()
	defer audit.Unlock()
	require.Equal(t, 10, strings.Count(audit.String(), `"msg":"begins"`), "each change, and no other request")
	require.Equal(t, 10, strings.Count(audit.String(), `"msg":"change"`))
	require.Equal(t, 20, strings.Count(audit.String(), "\n"))
	require.Contains(t, audit.String(), `"method":"DELETE","path":"/v1/kept/a/b"`)
}

// Another user gets no answer, even where the socket's file lets it in; and a caller that sees none of this server's
// processes gets no more than words.
func TestCallersThatAreNotLetIn(t *testing.T) {
	hermetic.OtherUsers(t)
	socket, _ := serve(t, &fakeSets{})
	about, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), about.Mode().Perm())
	ask := func(attributes *syscall.SysProcAttr) string {
		client := exec.Command("/proc/self/exe")
		client.Dir, client.Env, client.SysProcAttr = "/", []string{asks + "=" + socket}, attributes
		said, err := client.CombinedOutput()
		if err != nil {
			t.Skipf("the client cannot be started so: %v", err)
		}
		return string(said)
	}
	require.Contains(t, ask(nil), `200 {"version":"1.2.3"`)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	const answered = `^\d{3} `
	require.NotRegexp(t, answered, ask(nobody))
	require.NoError(t, os.Chmod(socket, 0o666))
	require.NoError(t, os.Chmod(filepath.Dir(socket), 0o755))
	require.NotRegexp(t, answered, ask(nobody), "the connection ends")
	require.Contains(t, ask(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}), "403 ")
}

// More requests than a second allows are turned away, and so is a body that does not come.
func TestLimits(t *testing.T) {
	socket, _ := serve(t, &fakeSets{})
	client := clientOf(socket)
	require.Eventually(t, func() bool {
		reply, err := client.Get("http://tms/v1/version")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, reply.Body)
		return reply.StatusCode == http.StatusTooManyRequests && reply.Header.Get("Retry-After") == "1"
	}, time.Minute, time.Microsecond)

	// A header that is too long, or not one.
	long := "GET / HTTP/1.1\r\nHost: a\r\nLong: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"
	for _, sent := range []string{long, "\x16\x03\r\n\r\n"} {
		connection, err := net.Dial("unix", socket)
		require.NoError(t, err)
		go func() { _, _ = io.WriteString(connection, sent) }()
		text, _ := io.ReadAll(connection)
		require.Regexp(t, "^HTTP/1.1 4(31|00) ", string(text))
	}
}

// A server whose socket lost its place ends, and leaves the place to the next.
func TestASocketThatIsGone(t *testing.T) {
	socket := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "gone.sock")
	listener, err := ListenUnix(socket)
	require.NoError(t, err)
	require.NoError(t, os.Remove(socket))
	next, err := ListenUnix(socket)
	require.NoError(t, err)
	_, err = listener.Accept()
	require.ErrorIs(t, err, ErrGone)
	require.NoError(t, listener.Close())
	require.FileExists(t, socket)
	require.NoError(t, next.Close())
	require.NoFileExists(t, socket)
}

func TestTokens(t *testing.T) {
	const token = "0123456789abcdef"
	for text, refused := range map[string]string{
		"":                                    "there is no token",
		"# none\n":                            "there is no token",
		"short\n":                             "less than 16 characters",
		"a b c\n":                             "more than a name and a token",
		"a " + token + "\na " + token:         `the name "a" again`,
		token:                                 "",
		"\na " + token + "\nb " + token + "2": "",
	} {
		tokens, err := ParseTokens(text)
		if refused != "" {
			require.ErrorContains(t, err, refused)
			require.NotContains(t, err.Error(), token)
			continue
		}
		require.NoError(t, err)
		name, known := tokens.name(token)
		require.True(t, known)
		require.Contains(t, []string{"token", "a"}, name)
	}
	file := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o644))
	_, err := ReadTokens(file)
	require.ErrorContains(t, err, "chmod 600 it")
	require.NoError(t, os.Chmod(file, 0o440))
	_, err = ReadTokens(file)
	require.NoError(t, err)
}

// What callers and processes say does nothing to a terminal that shows the audit.
func TestPrintableAudit(t *testing.T) {
	audit := &lines{}
	h := &handler{audit: newAudit(audit)}
	request, err := http.NewRequest(http.MethodPost, "http://tms/v1/kept/x", nil)
	require.NoError(t, err)
	request.URL.Path = "/\u009b31m"
	c := &call{Request: request, body: []byte(`{"tag":"` + "\u202e" + `"}`), who: caller{from: "uid 1"}}
	h.begins(c)
	h.record(c, nil, nil)
	require.NotContains(t, audit.String(), "\u009b")
	require.NotContains(t, audit.String(), "\u202e")
	begins, ends, _ := strings.Cut(strings.TrimSpace(audit.String()), "\n")
	require.True(t, json.Valid([]byte(begins)) && json.Valid([]byte(ends)))
	require.Contains(t, begins, `"change":1,`)
	require.Contains(t, ends, `"change":1,`)
}
