// Package host keeps contents of device memory in pinned host memory.
//
// A Save places all new spans in one fresh buffer, which is touched by many threads, pinned registration by
// registration, and copied to as soon as a registration is pinned; into a buffer that is kept it only copies. A
// registration goes when the last contents in it are discarded. A Store has no lock: the live bytes of a registration
// are counted, and no two jobs share a buffer.
package host
