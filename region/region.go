// Package region holds what each thread asked for its next allocations (active, tag, backup), and the process's
// settings from the environment. It is in C because the fast path of cudaMalloc reads it without entering Go.
package region

// #cgo CFLAGS: -std=gnu11 -O2
import "C"
