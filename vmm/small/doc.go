// Package small packs allocations below the granularity of the driver into a granule that they share, its slab.
// It deals in offsets: the engine knows the granule's owner, and which slabs have room, under its lock.
package small
