package server

import (
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/control/rights"
)

// Process is what the server steers. The methods up to Returned are called on any thread. The socket's thread calls the
// others, and Returned, which never wait.
type Process interface {
	// Reserve makes the threads that the server needs, or refuses.
	Reserve() error
	// OwnTable gives the calling thread a descriptor table of its own, with nothing in it, or refuses.
	OwnTable() error
	// SharesTable reports whether the calling thread has the main thread's descriptor table. (kcmp)
	SharesTable() (bool, error)
	// Directories returns XDG_RUNTIME_DIR and TMPDIR.
	Directories() (runtime, temporary string)
	// AnyNamespace reports whether clients in all PID namespaces may ask for everything.
	AnyNamespace() bool
	// Perform carries out a task. What it notes in the outcome counts even if it fails or panics.
	Perform(*Task, *Outcome) error
	// LetGo ends one hold.
	LetGo()
	// State completes what the process says about itself, and takes Share away if it does not share. It waits for no
	// pause.
	State(*control.ProcessState) error
	// Lend returns a descriptor of memory, which the caller closes, and the reply that goes with it. It waits for no
	// pause.
	Lend(share uint64, to Importer) (descriptor int, reply control.Reply, err error)
	// Returned notes that an importer no longer has memory.
	Returned(share uint64, by Importer)
	// Wake has other processes make room, and undoes what was paused with Yield. It may wait for them. Errors:
	// ErrAlone.
	Wake() error

	// Hand makes another thread, with the process's descriptors, do work and then call done with its error. A panic
	// counts as an error.
	Hand(work func() error, done func(error))
	// Log writes a line on the host's stderr, from another thread, because descriptor 2 is a different file on this
	// one.
	Log(error)
	// Lasts notes that a client keeps the process paused and leaves. LastsNoMore notes why no such pause is left.
	Lasts(control.LastingPause)
	LastsNoMore(why string)
	// Bound notes the socket's file, which the process removes at its end.
	Bound(path string, device, inode uint64)
	// SetPending notes whether a client is pausing everything.
	SetPending(bool)
	// Note keeps what a client knows of the driver's part, for the next statuses.
	Note(control.Driver)
	// Look is called every control.Look. The process then brings its own counts up to date.
	Look()
	// Awaited reports whether a thread waits at the gate, or the gate is open.
	Awaited() bool
	// Waits returns for how long threads have waited for device memory so far, all together.
	Waits() time.Duration
	// Unalign ends what an align began.
	Unalign()
	// EndRecording ends a client's recording, if it still runs.
	EndRecording(which int)
}

// Task is a request that changes something, for Process.Perform.
type Task struct {
	Request   control.SteerRequest
	Tag       *string  // nil: all
	Due       []string // tags that an undo resumes, the rest first
	Recording int      // the one that a record ends

	Asked time.Time // when the client first asked for the resume that it now retries; or zero

	withdrawn chan struct{} // closed when the client goes or gives it up, and for what the server does itself
	complete  chan struct{} // closed when the client says that all memory has come (control.SteerRequest.Ahead)
	client    *connection   // nil: the client has gone
	words     string        // that say who the client is
	outside   *Outside
	lets      bool // it ends a hold
}

// Takes notes that a pause is about to take memory, which the program must not take back from then on, or that it has
// taken none and tries again later. A yielded pause leaves that to the program.
func (t *Task) Takes(now bool) {
	switch {
	case t.Request.Yield || t.outside == nil:
	case now:
		t.outside.begins(t)
	default:
		t.outside.begins(nil)
	}
}

// Cancel returns a channel that is closed when a wait for memory, or for other processes, must end.
func (t *Task) Cancel() <-chan struct{} { return t.withdrawn }

// Withdrawn reports whether Cancel is closed.
func (t *Task) Withdrawn() bool {
	select {
	case <-t.withdrawn:
		return true
	default:
		return false
	}
}

// Complete returns a channel that is closed when all memory has come for a request that is Ahead.
func (t *Task) Complete() <-chan struct{} { return t.complete }

// tell closes a channel, unless it is closed. Only the socket's thread does.
func tell(channel chan struct{}) {
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// isAhead reports whether a client's request takes memory as it comes, and has not been answered.
func (c *connection) isAhead() bool { return c.task != nil && c.task.Request.Ahead != nil }

// undoOf returns the server's own task of resuming tags, which waits for nothing.
func undoOf(due []string) *Task {
	t := &Task{Request: control.SteerRequest{Op: control.Undo}, Due: due, withdrawn: make(chan struct{})}
	close(t.withdrawn)
	return t
}

// settles reports whether the task itself decides whether everything is pending. Until it is done, nothing else may.
func (t *Task) settles() bool { return t.Request.Everything || slices.Contains(t.Due, rights.Rest) }

// Outcome is what a task has done.
type Outcome struct {
	Reply     control.Reply
	Held      bool     // it began a hold
	Took      []string // tags that a pause took something of
	Resumed   []string // tags that an undo has resumed
	Active    bool     // a resume has left nothing paused
	Recording int      // the one that a record began
}

// Importer is another process that has memory of this one open.
type Importer struct {
	PID    int
	Start  uint64
	Number uint64 // which of its imports
}
