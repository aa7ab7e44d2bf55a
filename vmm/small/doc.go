// Package small packs allocations below the granularity of the driver into a granule that they share, its slab. It
// deals in offsets; the engine, under its lock, knows the granule's owner and which slabs have room.
package small
