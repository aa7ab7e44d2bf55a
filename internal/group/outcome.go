package group

import (
	"context"
	"errors"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/vmm/cuda"
)

// AnswerTime is how long a process may take to report its state: one that is stopped never does.
const AnswerTime = 5 * time.Second

// lookEvery is how often a command that holds locks looks whether the process that takes memory is stopped.
const lookEvery = 250 * time.Millisecond

// Outcome is what a command has achieved with one process.
type Outcome struct {
	PID     int     `json:"pid"`
	OK      bool    `json:"ok"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Code    int     `json:"code"`
	Error   string  `json:"error,omitempty"`
	// For a pause: how many of Bytes have no backup, so that their contents are gone.
	WithoutContents uint64 `json:"without_contents_bytes,omitempty"`
	// Of sets and other processes, that were unmapped, or mapped again: they are not in Bytes.
	Imported uint64 `json:"imported_bytes,omitempty"`
	// For a refusal for lack of host memory: the bytes needed, and the bytes available.
	Host          uint64 `json:"host_bytes,omitempty"`
	HostAvailable uint64 `json:"host_available_bytes,omitempty"`
	// What a pause has moved (--to), and how long the driver took (--everything, and a resume that undid it).
	MovedBytes    uint64  `json:"moved_bytes,omitempty"`
	DriverSeconds float64 `json:"driver_seconds,omitempty"`
	NCCL          string  `json:"nccl,omitempty"`  // for --everything, and its resume: what became of NCCL's memory
	Note          string  `json:"note,omitempty"`  // that nothing was ever allocated with the tag
	Stays         string  `json:"stays,omitempty"` // for --job with --everything: why the driver has not taken the rest
	Tries         int     `json:"tries,omitempty"` // for a job's pause: tries until all stood between the same collectives
	Move          *Moved  `json:"move,omitempty"`
	// For a lend: when the process resumes by itself, in seconds since 1970, and who uses the memory.
	Until float64 `json:"until,omitempty"`
	To    string  `json:"lent_to,omitempty"`
	Lost  bool    `json:"lost,omitempty"` // the driver can never give the process back

	Unreachable bool `json:"-"`
}

// do sends a request, and notes what the process says that it did. Errors: those of client.Conn.Do; *Refusal.
func (o *Outcome) do(ctx context.Context, process *client.Conn, request control.SteerRequest) error {
	return o.Record(process.Do(ctx, request))
}

// Record notes what a process says that it did. Errors: err; *Refusal.
func (o *Outcome) Record(reply control.Reply, err error) error {
	o.Bytes, o.WithoutContents, o.Seconds = reply.Bytes, reply.WithoutContents, reply.Seconds
	o.Imported, o.MovedBytes, o.NCCL, o.Note, o.Stays = reply.Imported, reply.Moved, reply.NCCL, reply.Note, fleet.Renamed(reply.Stays)
	return Failure(reply, err)
}

// doWhileRunning is do, but gives up a process that is stopped, which would keep the locks.
func (o *Outcome) doWhileRunning(ctx context.Context, process *client.Conn, request control.SteerRequest) error {
	reply, err := WhileRunning(ctx, process, request, lookEvery, lookEvery)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) {
		err = errStopped
	}
	return o.Record(reply, err)
}

var errStopped = client.Unreachable("it does not answer (stopped?)")

// Changed reports whether a pause has taken memory from the process, or a resume has given some back.
func (o Outcome) Changed() bool { return o.Bytes+o.Imported > 0 }

// WhileRunning sends a request, and withdraws it if it finds the process stopped. It looks first when the time after
// has passed, and then each time again has passed. A withdrawn pause that takes memory nevertheless leaves it to the
// process to bring the memory back.
func WhileRunning(ctx context.Context, process *client.Conn, request control.SteerRequest,
	after, again time.Duration) (control.Reply, error) {
	ctx, stop := whileRunning(ctx, process, after, again)
	defer stop()
	return process.Do(ctx, request)
}

// whileRunning returns a context that ends when a look finds the process stopped.
func whileRunning(ctx context.Context, process *client.Conn, after, again time.Duration) (context.Context,
	context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		for wait := after; ; wait = again {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
				if process.Stopped() {
					stop()
				}
			}
		}
	}()
	return ctx, stop
}

// Refusal is a process's answer that it refuses.
type Refusal struct {
	words               string
	code                int
	host, hostAvailable uint64 // for lack of host memory
}

// waysOut names what a user can do when host memory does not suffice for contents.
const waysOut = "tms pause --to disk writes contents to files, --discard gives them up, --tag pauses a part; " +
	"tms run --backup disk or peer has them wait elsewhere"

func (r *Refusal) Error() string { return r.words }

// Failure returns err, or a reply that refuses as a *Refusal.
func Failure(reply control.Reply, err error) error {
	if err == nil && !reply.OK {
		refused := &Refusal{reply.Error, reply.Code, reply.Host, reply.HostAvailable}
		if refused.host > 0 {
			refused.words += " (" + waysOut + ")"
		}
		return refused
	}
	return err
}

// Ask sends a request, and returns only a refusal.
func Ask(ctx context.Context, process *client.Conn, request control.SteerRequest) error {
	return Failure(process.Do(ctx, request))
}

// Err returns the failure of an outcome, or nil.
func (o Outcome) Err() error {
	if o.OK {
		return nil
	}
	return &Refusal{words: o.Error, code: o.Code}
}

// Ended returns the outcome with an error, or without one.
func Ended(o Outcome, err error) Outcome {
	if err == nil {
		o.OK = true
		return o
	}
	o.OK, o.Error, o.Code = false, fleet.Renamed(err.Error()), Code(err)
	o.Unreachable = errors.Is(err, client.ErrUnreachable)
	o.Lost = isLost(o.PID, err)
	if refused, ok := errors.AsType[*Refusal](err); ok {
		o.Host, o.HostAvailable = refused.host, refused.hostAvailable
	}
	if errors.Is(err, context.Canceled) {
		o.Error = "interrupted: what had not begun is withdrawn, and a pause that had is undone"
	}
	return o
}

// Result is what several outcomes say together.
type Result int

// Results, of which the last that is true counts.
const (
	AllDone Result = iota
	SomeUnreachable
	SomeFailed
	SomeLost
)

// Summary returns what outcomes say together. Without any there was no process to reach.
func Summary(outcomes []Outcome) Result {
	result := AllDone
	if len(outcomes) == 0 {
		result = SomeUnreachable
	}
	for _, o := range outcomes {
		switch {
		case o.Lost:
			result = SomeLost
		case !o.OK && !o.Unreachable:
			result = max(result, SomeFailed)
		case !o.OK:
			result = max(result, SomeUnreachable)
		}
	}
	return result
}

// Code returns the number of an error, a cudaError_t.
func Code(err error) int {
	var refused *Refusal
	known := cuda.Code(err)
	switch {
	case errors.As(err, &refused):
		return refused.code
	case errors.As(err, new(*lost)):
		return int(cuda.IllegalState)
	case errors.Is(err, checkpoint.ErrLate):
		return int(cuda.Timeout)
	case errors.Is(err, checkpoint.ErrUnsupported):
		return int(cuda.NotSupported)
	case known == int(cuda.Unknown):
		return int(cuda.OperatingSystem)
	}
	return known
}

// short reports whether an error says that memory of a device was short.
func short(err error) bool { return Code(err) == int(cuda.OutOfMemory) }
