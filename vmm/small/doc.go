// Package small packs allocations below the granularity of the driver into a granule that they share, its slab.
// It deals in offsets: whose granule it is, and which slabs have room, the engine knows, under its lock.
package small
