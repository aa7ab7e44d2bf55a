// Package gate has the C by which libtms.so reaches the gate of libtms_reach.so, where threads stop between two CUDA
// calls.
//
// Nineteen nouns lead from a gated pause (Process.pauseGated) to a thread that stops (reach/gate.c). The gate stops the
// threads of the program. Each call that the gate knows has a kind, such as work, a capture or a poll. A thread shows
// its call by a mark, and a user is what libtms.so reads from a mark. The state of the gate says which kinds wait. The
// pauser is the thread that closes the gate; its barrier lets threads do without one. Threads that wait sleep until the
// next change of the state. A refusal lets them fail instead.
//
// A gated pause tries several moments. It may demand an idle time before it. A stop closes the gate for a client that
// has paused nothing yet. The driver's checkpoint comes behind a pause, and needs a stricter state. A signal that asks
// the program to end resumes it first. A registration of memory makes a pause fail, and a communicator of NCCL may give
// its memory back; reach/nccl.h has their own nouns. A thread may be let in before others, to an order.
package gate

// #cgo CFLAGS: -std=gnu11 -O2 -I${SRCDIR}/../../region -I${SRCDIR}/../../forward
// #cgo LDFLAGS: -lpthread
import "C"
