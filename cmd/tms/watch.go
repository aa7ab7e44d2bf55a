package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const shortestWatch = 0.1 // seconds

// watching shows something again and again until the command is interrupted: on a terminal in one place, elsewhere one
// after another, with an empty line between where that is wanted.
func watching(to io.Writer, every time.Duration, apart bool, show func(io.Writer) error) error {
	ctx, _ := interruptible()
	next := time.NewTicker(every)
	defer next.Stop()
	for first := true; ; first = false {
		var shown bytes.Buffer
		if err := show(&shown); err != nil {
			return err
		}
		if height, ok := terminal(to); ok {
			screen(&shown, height, first)
		} else if apart && !first {
			if _, err := io.WriteString(to, "\n"); err != nil {
				return err
			}
		}
		if _, err := shown.WriteTo(to); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
	}
}

// terminal returns how many lines a terminal has, if it can move its cursor.
func terminal(to io.Writer) (height int, ok bool) {
	file, ok := to.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Row), true
}

// screen has text take the place of what was there before, as much of it as the terminal has lines for; 0: not known.
func screen(text *bytes.Buffer, height int, first bool) {
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if height > 1 && len(lines) > height-1 { // the last is the cursor's
		more := len(lines) - (height - 2)
		lines = append(lines[:height-2], fmt.Sprintf("… and %d lines more", more))
	}
	text.Reset()
	if first {
		text.WriteString("\x1b[2J") // clears it
	}
	text.WriteString("\x1b[H") // its first line
	for _, line := range lines {
		text.WriteString(line + "\x1b[K\n") // nothing behind it
	}
	text.WriteString("\x1b[J") // nor below
}
