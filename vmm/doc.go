// Package vmm is the engine: it makes device memory whose physical part can be taken away and
// brought back under the same addresses.
//
// # Nouns
//
// A change to a pause needs these, and each has one file that says what states it has:
//
//	segment       segment.go     whole granules of addresses: active, paused or slack; its owner works on it
//	backing       segment.go     where its memory comes from: own, user-mapped, imported
//	contents      segment.go     saved: where they wait, and whether they are current
//	outcome       segment.go     what becomes of a segment at the end of a transition
//	tag           segment.go     segments of a device that pause and resume together
//	allocation    segment.go     what a program has: a segment, or a part of a slab; claimed, then dropped or live again
//	slack         segment.go     what is free in an extent that others still use
//	extent        extent.go      a mapping of one or more segments: none, created, mapped, accessible (package mapping)
//	parts         contents.go    what of a segment has contents worth keeping: live, no block of zeros
//	operation     transition.go  a pause, resume, spill, fetch or compaction: its options, and how it spends its time
//	transition    transition.go  a step of it, all or nothing: its turn, begin, work, end
//	batch         transition.go  a device's part of a transition
//	compaction    compact.go     a transition that gives slack back, behind the gate
//	pending free  pending.go     unwaited, on devices, on a stream, idle, due, refused, made, taken
//	line          pending.go     the pending frees of a stream, whose next allocation may take one
//	offer         ordered.go     an allocation that the program may free, and have again, without the engine
//	share         share.go       a segment that other processes may map: open, or closed by a pause
//	import        import.go      such a segment of another process: mapped, paused, lost
//	set           set.go         memory that the keeper holds; every process imports it, its maker too
//	exchange      remap.go       other memory of the keeper for an import's addresses: from, to, there
//	gate          host.go        keeps the program from giving devices work until all is back
//
// A segment is one cudaMalloc, or a slab: a granule that allocations below the granularity share. Its addresses
// are a span of an arena, a large reservation of its device that the engine keeps for good. A Store of package store
// keeps contents.
//
// # Files
//
// Most are named for a noun or an operation. To read how an operation goes, begin with its file, and follow the calls
// in order: a path returns to few files. Pause and Resume go from pause.go and resume.go through transition.go, and
// move contents in contents.go; resume.go also has the work of a resume. Free and Malloc go from free.go and malloc.go:
// allocate.go makes what malloc.go has found room for, ordered.go allocates and frees in the order of streams, wake.go
// makes a paused slab active for a small allocation. reap.go waits for pending frees, and has the thread that makes
// them.
//
// The others: engine.go has the engine's fields, its lock, and the walks through segments; device.go has the fields of
// a GPU; access.go gives other devices access; observe.go says what an observer learns; live.go notes what a program
// says of its contents; shortage.go says what memory is lacking; parts.go gives memory back part by part, and waits for
// what another process gives back so; order.go brings memory back step by step; lookup.go finds what is at an address,
// and says what there is; usermapped*.go has memory that the program maps itself with the driver's calls; invariants.go
// checks the records against each other.
//
// The packages below know nothing of this one: mapping (the driver's steps for memory at one place), contexts (whose
// work is waited for), quota (limit and margin of a device), space (addresses, and what is free by its size), small
// (slabs), store (contents, and those given up), digest (hashes on the GPU), importers (who has memory mapped), names
// (tags that were used), cuda (the driver), reclaim (what is still to be given back), stats (figures).
//
// # The life of a segment
//
//	             Malloc              Pause
//	           ---------->         --------->
//	(addresses)             active             paused
//	           <----------         <---------
//	    ^        Free        |  ^    Resume      |
//	    |     Free, where    |  |                |
//	    |    others use the  v  | Malloc         |
//	    |        extent     slack                |
//	    |                    |                   |
//	    +--------------------+-------------------+
//	     Pause, or the others go       Free
//
// Its extent goes through the steps none, created, mapped, accessible and back. Others see the extent of an active
// segment at accessible, and that of a paused one at none, or after an error at created or mapped: the next pause,
// resume or free goes on from there. Before its step of an order it is at created. A worker on a segment or an extent
// owns it: a transition (aTransition), a driver call (aCall), or a free, made or pending (aFree); lookups do not find a
// segment that a free owns.
//
// # Locks
//
// They are taken in this order: transition, on which pauses, resumes, moves, preparations and resets take turns, and
// for which an allocation does not wait (wakeSlab); counting, of one look at all for the statistics; mu, over all
// records, those of space, small and quota included; then the locks inside store, cuda, digest, reclaim, importers and
// names, which call no package above. mu is never held over a driver call, except those of newDevice and the
// reservation of an arena. A walk through segments, tags or pending frees lets others have mu after
// every few hundred (pace), and bears that they change the records in between. To lock mu takes all offers back, except
// in an allocation or a free in stream order. A worker on extents that does not hold mu owns them, and their segments
// where it changes those; others wait for settled. Release every lock before waiting for the program or for another
// process: for streams and contexts (contexts.Finish), callbacks (track), processes that have the memory mapped
// (awaitImporters), and the work before pending frees (reap, awaitDevices).
package vmm
