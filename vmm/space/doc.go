// Package space finds device addresses and looks up the owner of an address.
//
// An arena is one large reservation of a device's addresses. A range is a part of an arena in which one tag
// has its spans, so allocations that follow each other lie side by side, and can share memory. A room is a range
// of one pool alone. A span is a run of granules, of the device's allocation granularity, in a range. Nothing here maps
// memory.
//
// Nothing here is safe for use by many threads at once: the engine holds its lock around every call.
package space
