package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
)

const (
	barEvery  = 200 * time.Millisecond
	lineEvery = time.Second
	barAfter  = 500 * time.Millisecond // work that is done sooner needs no bar
	barWidth  = 16
)

// progress shows on stderr how far processes have come with a command's work: on a terminal by a bar in one place,
// elsewhere by a line each second. It asks the processes, besides the request that they carry out; for those that do
// not say (contents are not being copied yet, the driver has the process) it shows only the time.
type progress struct {
	to      io.Writer
	bar     bool
	verb    string
	begun   time.Time
	stopped chan struct{}
	looking sync.WaitGroup

	mutex sync.Mutex // guards the fields below, and writing
	pids  []int      // processes that are not done
	shown bool
}

// progress begins to show. With JSON, or for libtms.so, it shows nothing.
func (s *steering) progress(to io.Writer, verb string, pids ...int) *progress {
	p := &progress{to: to, bar: terminal(to), verb: verb, begun: time.Now(),
		stopped: make(chan struct{}), pids: slices.Clone(pids)}
	if !s.asJSON && !s.report && len(pids) > 0 {
		p.looking.Go(p.follow)
	}
	return p
}

// terminal reports whether a writer is a terminal that can move its cursor.
func terminal(to io.Writer) bool {
	file, ok := to.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// done writes a process's result.
func (p *progress) done(pid int, write func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.clear()
	p.pids = slices.DeleteFunc(p.pids, func(other int) bool { return other == pid })
	write()
}

func (p *progress) end() {
	close(p.stopped)
	p.looking.Wait()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.clear()
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) follow() {
	next, every := barAfter, barEvery
	if !p.bar {
		next, every = lineEvery, lineEvery
	}
	for {
		select {
		case <-p.stopped:
			return
		case <-time.After(time.Until(p.begun.Add(next))):
		}
		p.mutex.Lock()
		pids := slices.Clone(p.pids)
		p.mutex.Unlock()
		if next += every; len(pids) == 0 {
			continue
		}
		asked := time.Now()
		text := p.text(pids)
		next = nextLook(next, time.Since(p.begun), time.Since(asked))
		p.mutex.Lock()
		if len(p.pids) == len(pids) { // else the text is out of date
			if p.bar {
				fmt.Fprintf(p.to, "\r%.*s\x1b[K", tableWidth-1, text) // in one line
				p.shown = true
			} else {
				fmt.Fprintf(p.to, "tms: %s\n", text)
			}
		}
		p.mutex.Unlock()
	}
}

// nextLook returns the time from the begin of the work to the next look. Looks take a tenth of the time at most, because many
// processes that answer without end have no time for the work.
func nextLook(next, now, took time.Duration) time.Duration { return max(next, now+9*took) }

// text asks each process how far it has come.
func (p *progress) text(pids []int) string {
	verb, copied, total := fleet.Progress(fleet.Ask(lineEvery, pids...))
	verb = cmp.Or(verb, p.verb)
	text := fmt.Sprintf("%s %d", verb, pids[0])
	if len(pids) > 1 {
		text = fmt.Sprintf("%s %d processes", verb, len(pids))
	}
	if total > 0 {
		if p.bar {
			full := int(copied * barWidth / total)
			text += " [" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
		}
		text += fmt.Sprintf(" %d%%, %s of %s", copied*100/total, readable.Bytes(copied), readable.Bytes(total))
	}
	return text + fmt.Sprintf(", %d s", int(time.Since(p.begun).Seconds()))
}
