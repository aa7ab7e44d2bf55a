// Package store is where the contents of device memory wait while the memory itself is gone: **private**, in pinned
// memory of the process, or **held** behind a descriptor, as memory of another GPU, reserved host memory, or a file.
//
// The nouns: a **Store** saves the **Contents** of a **Span** for a **Job**, the device that it works for, and a
// **Loader** brings them back. A **Budget** is the host memory that the Jobs of one transition, which work side by
// side, may take together.
//
//   - Private places all new spans of a Save in one fresh buffer. Many threads touch it, few pin it, **registration**
//     by registration, and each registration is copied to as soon as it is pinned. A registration goes when the last
//     contents in it are discarded.
//   - Peer takes one **range** of each device that it uses: **chunks**, a handle each, at consecutive addresses, so
//     that contents may lie across several. A chunk is given back when the last contents that reach into it are
//     discarded, and the addresses with the last chunk. **Reserved** host memory is a device of that kind. What finds
//     no room goes to Private. The driver's checkpoint takes what a process has mapped, so the memory of a portable
//     Save, and reserved memory, is mapped only during a Save or a Load: otherwise descriptors alone keep it.
//   - Disk writes **sections** of **files** without a name, which end with the process, however it ends. A **transfer**
//     moves them through **staging** memory.
//
// **Descriptors** keeps the descriptors of all of them. What the stores give back goes through package reclaim, in the
// background, since the caller may hold the engine's lock. Stores call no package above.
//
// Locks: Private has none, because the live bytes of a registration are counted, and no two Jobs share a buffer. Peer
// has taking, held while memory is taken, and then mu, over the count of what is held. Disk has its configuration's,
// that of contents (which section is theirs), a transfer's (its chunks), an open file's (its descriptor), and a file's
// (its sections), of which no thread holds two at once.
package store
