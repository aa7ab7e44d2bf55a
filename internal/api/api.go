// Package api answers controllers over HTTP. It asks what the commands ask: packages fleet, group, sets and
// snapshot do the work, and the JSON is that of the commands. openapi.json describes it, and docs/serve.md is for users.
//
// The nouns: a caller is who asks, a user and process of this machine or the name of a token. A route is a method and a
// path, with what answers it. A change is a request that changes something: it leaves a line in the audit when it begins,
// and another when it ends.
//
// A request whose caller goes before the answer is withdrawn as by Ctrl-C on a command: what has not begun does not
// happen, and a pause that is not complete is undone.
package api

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/group"
	"tms/internal/sets"
	"tms/vmm/cuda"
)

// Limits of the server.
const (
	maxBody    = 64 << 10 // bytes of a request's body
	maxHeader  = 16 << 10
	headerTime = 5 * time.Second
	bodyTime   = 10 * time.Second
	replyTime  = 10 * time.Second // for a caller to read the answer
	idleTime   = time.Minute      // between two requests of a connection
	maxAtOnce  = 32               // requests in progress
	eachSecond = 50               // requests, of all callers, after a burst of twice as many
	guesses    = 5                // of tokens that are wrong, each second
)

// Options say what a server is made of.
type Options struct {
	Context context.Context // ends requests in progress
	Version string          // of the command
	Tokens  Tokens          // the callers' own, or nil if the listener lets no one else in (ListenUnix)
	Sets    Sets
	// Snapshots is the directory of snapshots, or "" if there are none.
	Snapshots string
	Audit     io.Writer
}

// Sets is what can be done with the keeper's sets.
type Sets interface {
	List() ([]control.KeptSet, error)
	Drop(name string) error
	// Move takes control.ToHost, control.ToDisk or sets.Device.
	Move(name, to string) error
	// Advance has the processes that follow a set map its newest version, or the version before.
	Advance(ctx context.Context, name string, back bool, within time.Duration) ([]sets.Follower, error)
}

type handler struct {
	Options
	audit   *slog.Logger
	rate    *rate.Limiter
	guesses *rate.Limiter
	seats   chan struct{}
	changes atomic.Int64 // that were asked for
}

//go:embed openapi.json
var openAPI []byte

// NewServer returns a server for a listener of ListenUnix, or with tokens for one of TCP.
func NewServer(o Options) *http.Server {
	s := &handler{Options: o, audit: newAudit(o.Audit),
		rate: rate.NewLimiter(eachSecond, 2*eachSecond), guesses: rate.NewLimiter(guesses, 2*guesses),
		seats: make(chan struct{}, maxAtOnce)}
	paths := http.NewServeMux()
	for _, r := range s.routes() {
		paths.HandleFunc(r.pattern, func(to http.ResponseWriter, request *http.Request) { s.serve(to, request, r) })
	}
	paths.HandleFunc("/", func(to http.ResponseWriter, request *http.Request) {
		s.serve(to, request, route{answer: func(*call) (any, error) {
			return nil, &refusal{http.StatusNotFound, fmt.Sprintf("there is no %s %s: GET /openapi.json lists what there is",
				request.Method, request.URL.Path)}
		}})
	})
	return &http.Server{Handler: paths, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		BaseContext: s.baseContext, ErrorLog: slog.NewLogLogger(s.audit.Handler(), slog.LevelWarn)}
}

// route is what answers a request.
type route struct {
	pattern string // of http.ServeMux
	change  bool
	answer  func(*call) (any, error)
}

func (s *handler) routes() []route {
	return []route{
		{"GET /openapi.json", false, func(*call) (any, error) { return json.RawMessage(openAPI), nil }},
		{"GET /v1/version", false, s.version},
		{"GET /v1/processes", false, list},
		{"GET /v1/processes/{pid}", false, one},
		{"POST /v1/pause", true, asking(pause)},
		{"POST /v1/lend", true, asking(lend)},
		{"POST /v1/resume", true, asking(resume)},
		{"POST /v1/swap", true, asking(swap)},
		{"POST /v1/move", true, asking(move)},
		{"GET /v1/kept", false, s.listSets},
		{"POST /v1/kept/{name}", true, asking(s.moveSet)},
		{"DELETE /v1/kept/{name}", true, s.dropSet},
		{"POST /v1/kept/{name}/advance", true, asking(s.advanceSet)},
		{"GET /v1/snapshots", false, s.listSnapshots},
		{"POST /v1/snapshot", true, asking(s.takeSnapshot)},
		{"POST /v1/restore", true, asking(s.restore)},
	}
}

// results is an answer of several parts, some of which may have failed.
type results interface{ status() int }

// call is one request.
type call struct {
	*http.Request
	body   []byte
	who    caller
	change int64 // its number in the audit
}

// refusal is an error with a status of HTTP.
type refusal struct {
	status int
	words  string
}

func (r *refusal) Error() string { return r.words }

func badRequest(format string, arguments ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, arguments...)}
}

// serve lets a caller in, answers, and writes the audit.
func (s *handler) serve(to http.ResponseWriter, request *http.Request, r route) {
	who, err := s.caller(request)
	if err == nil && !s.rate.Allow() {
		err = &refusal{http.StatusTooManyRequests, fmt.Sprintf("there are more than %d requests a second", eachSecond)}
	}
	if err == nil {
		select {
		case s.seats <- struct{}{}:
			defer func() { <-s.seats }()
		default:
			err = &refusal{http.StatusServiceUnavailable, fmt.Sprintf("%d requests are in progress, and there can be no more",
				maxAtOnce)}
		}
	}
	if err != nil {
		reply(to, nil, err)
		return
	}
	c := &call{Request: request, who: who}
	var answer any
	c.body, err = readBody(to, request)
	if r.change {
		s.begins(c)
	}
	if err == nil {
		answer, err = r.answer(c)
	}
	if r.change {
		s.record(c, answer, err)
	}
	reply(to, answer, err)
}

// readBody reads all of the body, because a server sees only then that its client goes.
func readBody(to http.ResponseWriter, request *http.Request) ([]byte, error) {
	connection := http.NewResponseController(to)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTime))
	_ = connection.SetWriteDeadline(time.Time{}) // that of the answer before
	body, err := io.ReadAll(http.MaxBytesReader(to, request.Body, maxBody))
	_ = connection.SetReadDeadline(time.Time{})
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("a body has at most %d bytes", maxBody)}
	} else if err != nil {
		return nil, badRequest("the body did not come within %v: %v", bodyTime, err)
	}
	return body, nil
}

// asking has a body decoded before it is answered.
func asking[T any](answer func(*call, T) (any, error)) func(*call) (any, error) {
	return func(c *call) (any, error) {
		asked, err := decode[T](c)
		if err != nil {
			return nil, err
		}
		return answer(c, asked)
	}
}

// decode reads a body. It refuses a field that it does not know: what the field asks for may be what matters.
func decode[T any](c *call) (asked T, err error) {
	body := json.NewDecoder(bytes.NewReader(c.body))
	body.DisallowUnknownFields()
	if err = body.Decode(&asked); err == nil {
		if _, more := body.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more behind it")
		}
	}
	if err != nil {
		return asked, badRequest("the body is no JSON object as GET /openapi.json has it: %v", err)
	}
	return asked, nil
}

// reply writes an answer, or an error, within a time.
func reply(to http.ResponseWriter, answer any, err error) {
	status := http.StatusOK
	if refused, ok := errors.AsType[*refusal](err); ok {
		status = refused.status
	} else if err != nil {
		status = statusOf(err)
	} else if results, ok := answer.(results); ok {
		status = results.status()
	}
	if err != nil {
		answer = failure{readable.Printable(err.Error())}
	}
	text, failed := json.Marshal(answer)
	if failed != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	_ = http.NewResponseController(to).SetWriteDeadline(time.Now().Add(replyTime))
	to.Header().Set("Content-Type", "application/json")
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		to.Header().Set("Retry-After", "1")
	}
	if status == http.StatusUnauthorized {
		to.Header().Set("WWW-Authenticate", "Bearer")
	}
	to.WriteHeader(status)
	_, _ = to.Write(append(readable.JSON(text), '\n'))
}

// failure is the answer to a request that cannot be carried out.
type failure struct {
	Error string `json:"error"`
}

// statusOf returns the status for an error of the keeper.
func statusOf(err error) int {
	if group.Code(err) == int(cuda.SymbolNotFound) { // there is no such set
		return http.StatusNotFound
	}
	return http.StatusConflict
}
