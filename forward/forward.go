// Package forward finds, in C, the CUDA functions of the host process that libtms.so stands in
// front of, and calls them. It is C because calls outside a region must not enter Go.
package forward

// #cgo CFLAGS: -std=gnu11 -O2
// #cgo LDFLAGS: -ldl
import "C"
