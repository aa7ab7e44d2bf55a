// Package backoff paces polling: at first it polls soon, then ever more rarely.
package backoff

import "time"

// Backoff has the length of the next sleep. Each sleep is twice as long as the one before, up to Most.
type Backoff struct{ Next, Most time.Duration }

// Sleep sleeps, but not beyond the deadline; the zero Time sets none. Past the deadline it returns false at once.
func (b *Backoff) Sleep(deadline time.Time) bool { return b.SleepUnless(deadline, nil) }

// SleepUnless is Sleep, but returns false once cancel is closed.
func (b *Backoff) SleepUnless(deadline time.Time, cancel <-chan struct{}) bool {
	pause := b.Next
	if !deadline.IsZero() {
		pause = min(pause, time.Until(deadline))
	}
	b.Next = min(2*b.Next, b.Most)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-cancel:
		return false
	case <-timer.C:
		return pause > 0
	}
}
