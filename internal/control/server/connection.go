package server

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/vmm/cuda"
)

// connection is one client.
type connection struct {
	descriptor int
	pid        int  // of the client, or 0 if this process cannot see the client
	uid        int  // of the client
	passed     int  // a descriptor that it has sent, or -1
	trusted    bool // its PID namespace was found to allow more than a status
	lent       *lend
	seated     bool      // one of MaxClients; the others may only send what processes that share memory say
	in         []byte    // not yet a whole line, or more than is read for now
	since      time.Time // its first byte
	out        []byte
	written    time.Time
	ended      bool // it sends nothing more
	closing    bool // the connection ends when the client has read its reply
	gone       bool
	task       *Task
	asked      time.Time // when it first asked for the resume, in turn, that lacks memory; or zero
	status     uint8     // one of the below
	statusID   uint64
	lease      time.Duration       // how long it may stay silent while it holds threads up, or 0 for no limit
	ignored    map[uint64][]string // fields of requests without an answer yet, by the requests' IDs
	standIn
	parks     *control.SteerRequest // asks to park the thread once it has nothing else to do
	gives     bool                  // a descriptor may come from it: the process was restored, and awaits its contents
	recording int                   // the number of the recording that it has begun and not ended, or 0
}

// States of a client's request for a status, for a thread at the gate, or for memory.
const (
	noStatus uint8 = iota
	statusWanted
	statusAsked
	lendAwaited
)

// waits reports whether the server waits for the client's next request: replies go first.
func (c *connection) waits() bool {
	return !c.gone && !c.closing && c.status == noStatus && c.parks == nil && len(c.out) == 0
}

// reads reports whether the server reads from the client now.
func (c *connection) reads() bool { return c.waits() && !c.ended }

func (c *connection) read() {
	buffer := make([]byte, 16<<10)
	n, err := c.receive(buffer)
	switch {
	case err == nil && n == 0:
		c.ended = true
	case err == nil:
		if len(c.in) == 0 {
			c.since = time.Now()
		}
		c.in = append(c.in, buffer[:n]...)
	case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
		c.gone = true
	}
}

// receive reads what a client has sent; with a descriptor from the process itself, or where the process awaits some.
func (c *connection) receive(buffer []byte) (int, error) {
	if c.pid != os.Getpid() && !c.gives {
		return unix.Read(c.descriptor, buffer)
	}
	return descriptors.Receive(c.descriptor, buffer, &c.passed)
}

// fail ends a client's connection with an error, because it is unknown where the next request would begin.
func (c *connection) fail(err error) {
	c.refuse(0, err)
	c.closing, c.in = true, nil
}

func (c *connection) refuse(id uint64, err error) {
	c.answer(control.Reply{ID: id, Code: int(cuda.InvalidValue), Error: err.Error()})
}

func (c *connection) answer(reply control.Reply) {
	reply.Version, reply.Ignored = control.Version, c.ignored[reply.ID]
	delete(c.ignored, reply.ID)
	c.written = time.Now()
	c.since = c.written
	c.out = append(c.out, control.Line(reply)...)
}

// write sends what the client is to get, and closes the descriptor that goes with it once the kernel has that.
func (c *connection) write(now time.Time) {
	for len(c.out) > 0 && !c.gone {
		descriptor := -1
		if c.lent != nil {
			descriptor = c.lent.passed
		}
		n, err := descriptors.Send(c.descriptor, c.out, descriptor, unix.MSG_DONTWAIT)
		switch {
		case err == nil:
			_ = unix.Close(descriptor) // -1: there is none
			c.lent = nil
			c.out, c.written = c.out[n:], now
		case errors.Is(err, unix.EAGAIN):
			return
		case !errors.Is(err, unix.EINTR):
			c.gone = true
		}
	}
	c.gone = c.gone || c.closing && len(c.out) == 0
}
