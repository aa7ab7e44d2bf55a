package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
)

// look binds the socket again when nothing leads to it any more: $XDG_RUNTIME_DIR goes with the user's last login. It
// waits for nothing; what cannot be done is tried again at the next look.
func (s *server) look(now time.Time) {
	if now.Sub(s.looked) < control.Look {
		return
	}
	s.looked = now
	var found unix.Stat_t
	switch err := unix.Lstat(s.path, &found); {
	case err == nil && found.Dev == s.made.Dev && found.Ino == s.made.Ino:
		return
	case err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR):
		return // the process may not look there, and others may
	}
	s.accept(now) // clients that came before it was gone
	if before := s.socket; s.listen(0) == nil {
		_ = unix.Close(before)
	}
}
