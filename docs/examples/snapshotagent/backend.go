// Package snapshotagent is an example: a backend for llm-d's Snapshot Agent over tms serve.
//
// The agent (llm-d/llm-d, issue 2365; llm-d-incubation/llm-d-rl-time-slicing) runs on each node and has jobs take turns
// on its GPUs. It leaves the work to backends, each of which has three methods: Backend has them as they are there, and
// Request stands for the agent's own. To use the example, copy it beside the agent's backends, take the agent's Request,
// and find the processes of a job as the agent does for cuda-checkpoint.
//
// The programs run under tms run, and tms serve runs where they can be seen, as the same user or as root.
package snapshotagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Request says which job is meant, and what runs for it on this node.
type Request struct {
	JobID string
	PIDs  []int
	// Launch is the name of a launch of several ranks, as torchrun and tms ps --json have it. They are paused all or none.
	Launch string
}

// Backend is what the agent asks of a backend.
type Backend interface {
	// Snapshot takes a job off its GPUs.
	Snapshot(context.Context, Request) error
	// Restore brings it back.
	Restore(context.Context, Request) error
	// HealthCheck reports whether the backend can do either.
	HealthCheck(context.Context) error
}

// TMS pauses and resumes jobs by tms serve.
type TMS struct {
	client *http.Client
	// Everything has the driver take the rest of each process, too: contexts, graphs, libraries.
	Everything bool
	// Wait is how many seconds a restore waits for memory that another job is about to give back.
	Wait float64
}

var _ Backend = (*TMS)(nil)

// New returns a backend for the tms serve that listens at a Unix socket.
func New(socket string) *TMS {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &TMS{client: &http.Client{Transport: &http.Transport{DialContext: dial}}, Wait: 60}
}

// body is that of a pause and of a resume.
type body struct {
	PIDs       []int   `json:"pids,omitempty"`
	Job        string  `json:"job,omitempty"`
	Everything bool    `json:"everything,omitempty"`
	Wait       float64 `json:"wait,omitempty"`
}

// Snapshot pauses the processes. If the context ends before, they are as they were. A process that is paused already
// stays so, and the agent may ask again.
func (t *TMS) Snapshot(ctx context.Context, request Request) error {
	return t.steer(ctx, "pause", request, body{Everything: t.Everything})
}

// Restore resumes the processes, at the same addresses and with their contents.
func (t *TMS) Restore(ctx context.Context, request Request) error {
	return t.steer(ctx, "resume", request, body{Wait: t.Wait})
}

// HealthCheck asks the server for its version.
func (t *TMS) HealthCheck(ctx context.Context) error {
	return t.ask(ctx, http.MethodGet, "version", nil, nil)
}

// steer asks for a change of all processes, and returns an error that names those that have not changed.
func (t *TMS) steer(ctx context.Context, what string, request Request, asked body) error {
	if asked.Job = request.Launch; asked.Job == "" {
		asked.PIDs = request.PIDs
	}
	var answer struct {
		Error    string
		Outcomes []struct {
			PID   int
			OK    bool
			Error string
		}
	}
	if err := t.ask(ctx, http.MethodPost, what, asked, &answer); err != nil {
		return fmt.Errorf("job %s: %w", request.JobID, err)
	}
	var failed []error
	if answer.Error != "" {
		failed = append(failed, errors.New(answer.Error))
	}
	for _, outcome := range answer.Outcomes {
		if !outcome.OK {
			failed = append(failed, fmt.Errorf("process %d: %s", outcome.PID, outcome.Error))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("job %s: %s: %w", request.JobID, what, err)
	}
	return nil
}

// ask sends a request, and reads the answer. Whatever the status, the answer says what has happened.
func (t *TMS) ask(ctx context.Context, method, what string, asked, answer any) error {
	text, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://tms/v1/"+what, bytes.NewReader(text))
	if err != nil {
		return err
	}
	reply, err := t.client.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if answer == nil {
		if reply.StatusCode != http.StatusOK {
			return fmt.Errorf("tms serve answers %s", reply.Status)
		}
		return nil
	}
	return json.NewDecoder(reply.Body).Decode(answer)
}
