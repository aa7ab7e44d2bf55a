package disk

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"tms/vmm/backup"
)

// bytesOf returns the memory of a span.
func bytesOf(s backup.Span) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&s.Address))), s.Size)
}

// fill writes words that depend on seed, and their place, into every page.
func fill(spans []backup.Span, seed uint64) {
	for i, span := range spans {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		bytes := bytesOf(span)
		for at := 0; at < len(bytes); at += 2048 {
			*(*uint64)(unsafe.Pointer(&bytes[at])) = random.Uint64()
		}
	}
}

// requireFilled asserts that spans hold what fill wrote.
func requireFilled(t *testing.T, spans []backup.Span, seed uint64) {
	t.Helper()
	for i, span := range spans {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		bytes := bytesOf(span)
		for at := 0; at < len(bytes); at += 2048 {
			if *(*uint64)(unsafe.Pointer(&bytes[at])) != random.Uint64() {
				t.Fatalf("span %d differs at byte %d", i, at)
			}
		}
	}
}

// wipe zeroes spans.
func wipe(spans []backup.Span) {
	for _, span := range spans {
		clear(bytesOf(span))
	}
}

// discard discards contents.
func discard(contents []backup.Contents) {
	for _, c := range contents {
		c.Discard()
	}
}
