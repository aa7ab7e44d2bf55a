package wrap

import "tms/vmm/pool"

// As returns the outermost pool, from p inwards, that is also a T: a pool.StreamRecorder or a
// pool.GraphPools, whose calls make and end no blocks and so may go past the wrappers.
func As[T any](p pool.Pool) (found T, ok bool) {
	for {
		if found, ok = p.(T); ok {
			return found, true
		}
		outer, wraps := p.(interface{ Unwrap() pool.Pool })
		if !wraps {
			return found, false
		}
		p = outer.Unwrap()
	}
}

// Unwrap returns the pool beneath.
func (l *Limit) Unwrap() pool.Pool { return l.Pool }

// Unwrap returns the pool beneath.
func (l *Log) Unwrap() pool.Pool { return l.Pool }

// Unwrap returns the pool beneath.
func (s *Statistics) Unwrap() pool.Pool { return s.Pool }
