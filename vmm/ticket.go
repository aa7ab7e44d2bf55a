package vmm

import "sync"

// ticketLock is a lock that is had in the order in which it was asked for. Asking and waiting are two steps:
// what is to go on in the background has its place in the order when the call that begins it returns.
type ticketLock struct {
	mu            sync.Mutex
	turn          sync.Cond // serving has changed
	next, serving uint64    // tickets
}

func (l *ticketLock) init() { l.turn.L = &l.mu }

// ask takes a ticket. It never waits; await must follow.
func (l *ticketLock) ask() (ticket uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ticket = l.next
	l.next++
	return ticket
}

// await returns when it is the ticket's turn, which lasts until Unlock.
func (l *ticketLock) await(ticket uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.serving != ticket {
		l.turn.Wait()
	}
}

func (l *ticketLock) Lock() { l.await(l.ask()) }

// TryLock tells whether the lock was free, and is now the caller's.
func (l *ticketLock) TryLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.serving != l.next {
		return false
	}
	l.next++
	return true
}

func (l *ticketLock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving++
	l.turn.Broadcast()
}
