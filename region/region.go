// Package region holds, in C, what each thread asked for its next allocations (active, tag,
// backup) and the defaults it takes from the environment. It is C because the fast path of
// cudaMalloc reads it without entering Go; Go gets the settings as arguments of each call.
package region

// #cgo CFLAGS: -std=gnu11 -O2
import "C"
