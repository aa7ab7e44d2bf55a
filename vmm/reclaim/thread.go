package reclaim

import (
	"time"

	"tms/internal/aid/guard"
)

// Thread gives things back in the background, for an owner whose lock guards it: every method but Sleep is called with
// that lock held.
type Thread struct {
	run     func() error
	running bool
	wake    chan struct{}
}

// NewThread returns a thread that is to run a function. The function calls Ended when it is about to return.
func NewThread(run func() error) *Thread { return &Thread{run: run, wake: make(chan struct{}, 1)} }

// Start starts the thread, unless it runs.
func (t *Thread) Start() {
	if !t.running {
		t.running = true
		go func() { _ = guard.Call(t.run) }()
	}
}

// Ended notes that the thread runs no longer.
func (t *Thread) Ended() { t.running = false }

// Runs reports whether the thread runs.
func (t *Thread) Runs() bool { return t.running }

// Wake ends the thread's Sleep, or its next.
func (t *Thread) Wake() {
	select {
	case t.wake <- struct{}{}:
	default: // it has been told
	}
}

// Sleep lets the thread wait, until another wakes it.
func (t *Thread) Sleep(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.wake:
	}
}
