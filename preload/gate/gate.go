// Package gate has the C by which libtms.so reaches the gate of libtms_reach.so, where threads stop between two CUDA
// calls.
package gate

// #cgo CFLAGS: -std=gnu11 -O2 -I${SRCDIR}/../../region -I${SRCDIR}/../../forward
// #cgo LDFLAGS: -lpthread
import "C"
