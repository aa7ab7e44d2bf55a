package server

import (
	"cmp"
	"encoding/json"
	"os"
	"strings"
	"time"

	"tms/internal/control"
)

// ask makes another thread build the status for all clients that want it.
func (s *Server) ask(now time.Time) {
	state := &control.ProcessState{PID: os.Getpid(), Command: command()}
	if s.running != nil {
		state.Doing = s.running.Request.Op
	}
	for _, c := range s.clients {
		if c.status == statusWanted {
			c.status = statusAsked
		}
	}
	s.asking, s.handed, state.Share, state.PausedBy = true, now, s.share(now), s.pausedBy()
	reply := &control.Reply{OK: true}
	s.process.Hand(func() (err error) {
		err = s.process.State(state)
		process, failed := json.Marshal(state) // what is known, even after an error
		reply.Process = process
		return cmp.Or(err, failed)
	}, func(err error) {
		if err != nil {
			failed(reply, err)
		}
		s.status.Store(reply)
		wake()
	})
}

// answerStatus sends a status to the clients that have waited for it.
func (s *Server) answerStatus(reply *control.Reply) {
	s.asking = false
	for _, c := range s.clients {
		if c.status == statusAsked {
			reply.ID = c.statusID
			c.status = noStatus
			c.answer(*reply)
		}
	}
}

// command reads the command line each time, because the process may have changed it (setproctitle).
func command() string {
	text, _ := os.ReadFile("/proc/thread-self/cmdline")
	text = text[:min(len(text), commandMost)]
	arguments := strings.ReplaceAll(strings.TrimRight(string(text), "\x00"), "\x00", " ")
	return strings.ToValidUTF8(arguments, "\uFFFD")
}
