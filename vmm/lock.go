package vmm

import "sync"

// lock is the engine's lock. To take it takes all offers back (repeat.go), so that the records are true.
type lock struct {
	sync.Mutex
	locked func() // called with the lock taken
}

// lockWatched is called by the thread that holds a lock, when it has taken the lock and when it is about to let it go.
// Tests alone set it.
var lockWatched func(taken bool)

func watchLock(taken bool) {
	if lockWatched != nil {
		lockWatched(taken)
	}
}

func (l *lock) Lock() {
	l.Mutex.Lock()
	watchLock(true)
	l.locked()
}

// lockAlone leaves the offers where they are.
func (l *lock) lockAlone() {
	l.Mutex.Lock()
	watchLock(true)
}

func (l *lock) TryLock() bool {
	locked := l.Mutex.TryLock()
	if locked {
		watchLock(true)
		l.locked()
	}
	return locked
}

func (l *lock) Unlock() {
	watchLock(false)
	l.Mutex.Unlock()
}
