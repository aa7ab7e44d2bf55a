// Package backoff is for what can only be asked again and again: at first soon, then ever more rarely.
package backoff

import "time"

// Backoff is how long the next sleep takes. Each takes twice as long as the one before, up to Most.
type Backoff struct{ Next, Most time.Duration }

// Sleep sleeps, at the longest until the deadline; the zero Time is none. It returns false, at once, when that is over.
func (b *Backoff) Sleep(deadline time.Time) bool {
	pause := b.Next
	if !deadline.IsZero() {
		pause = min(pause, time.Until(deadline))
	}
	time.Sleep(pause)
	b.Next = min(2*b.Next, b.Most)
	return pause > 0
}
