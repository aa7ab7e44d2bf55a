package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// output is a command's stdout. It remembers the first write that failed, for the end of the command: a pause that no
// longer has a reader is still carried out.
type output struct {
	to     io.Writer
	failed error
}

func (o *output) Write(text []byte) (int, error) {
	if o.failed != nil {
		return 0, o.failed
	}
	written, err := o.to.Write(text)
	o.failed = err
	return written, err
}

// lost says that an answer was lost, and returns the exit status for that; err is the command's own. A reader that has
// gone, such as head, wants no more.
func (o *output) lost(stderr io.Writer, status int, err error) int {
	if o.failed == nil || errors.Is(o.failed, unix.EPIPE) {
		return status
	}
	why := o.failed
	if failed, ok := errors.AsType[*os.PathError](why); ok {
		why = failed.Err
	}
	words := "the answer is lost"
	if err == nil {
		words += ", but the command was carried out"
	}
	fmt.Fprintf(stderr, "tms: stdout: %v: %s\n", why, words)
	return max(status, exitUsage)
}

// outliveReaders lets a write to a closed pipe fail, where the signal would end the command in the middle of its work.
// A program that this command becomes finds the signal as it was.
func outliveReaders() {
	if !signal.Ignored(unix.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	}
}
