package turns

import (
	"time"
)

// Estimate is what a swap of bytes is taken to cost before it was measured.
func Estimate(bytes uint64) time.Duration {
	p := Process{Tags: []Tag{{Bytes: bytes}}}
	return p.price()
}
