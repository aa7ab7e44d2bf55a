// Package region holds, in C, what each thread asked for its next allocations (active, tag,
// backup), and what the environment says for the process. It is C because the fast path of
// cudaMalloc reads it without entering Go, which is handed the settings whole.
package region

// #cgo CFLAGS: -std=gnu11 -O2
import "C"
