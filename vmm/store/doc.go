// Package store is where the contents of device memory wait while the memory itself is gone: **private**, in pinned
// memory of the process, or **held** behind a descriptor, as memory of another GPU, reserved host memory, or a file.
//
// The nouns: a **Store** saves the **Contents** of a **Span** for a **Job**, the device that it works for, and a
// **Loader** brings them back. A **Budget** is the host memory that the Jobs of one transition, which work side by
// side, may take together. A **Held** store keeps contents in **extents**, each behind a descriptor that
// **Descriptors** keeps. The extents that one Save takes are a **run**, and contents have a **place** in it, across
// several extents if need be. An extent is given back when the last contents that reach into it are discarded.
//
//   - Private places all new spans of a Save in one fresh buffer. Many threads touch it, few pin it, **registration**
//     by registration, and each registration is copied to as soon as it is pinned. A registration goes when the last
//     contents in it are discarded.
//   - Peer takes one run of each device that it uses: **chunks**, a handle each, at consecutive addresses, which go
//     with the last chunk. **Reserved** host memory is a device of that kind. What finds no room goes to Private. The
//     driver's checkpoint takes what a process has mapped, so the memory of a portable Save, and reserved memory, is
//     mapped only during a Save or a Load: otherwise descriptors alone keep it. Only such chunks have a descriptor.
//   - Disk makes a run of **files** in a **Directory**. They have no name, and end with the process, however it ends. A
//     **transfer** copies to and from them through **staging** memory.
//
// The stores give memory back through package reclaim, in the background, since the caller may hold the engine's lock.
// Stores call no package above.
//
// Locks: Private has none, because the live bytes of a registration are counted, and no two Jobs share a buffer. Peer
// has taking, held while memory is taken, and then mu, over the count of what is held. Disk has its configuration's, a
// transfer's (its requests), and an open file's (its descriptor). Held contents have one, over their place. No thread
// holds two of these at once, but for taking and mu; a thread that holds one may enter package reclaim.
package store
