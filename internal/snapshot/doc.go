// Package snapshot keeps snapshots of programs in a **Directory**.
//
//	DIR/lock                  shared by writers and readers; a prune has it alone
//	DIR/blocks/ab/abcd...     a **block** of contents: up to 2 MiB, named by the SHA-256 of its bytes
//	DIR/blocks/packs/NAME.0   a **pack**: blocks of processes' private memory, each up to 64 KiB, one after another
//	DIR/NAME/                 a snapshot, which is complete; NAME.partial is not, and is never restored
//	DIR/NAME/snapshot.json    its **Manifest**, with the **Content** of each file that it took: a list of blocks
//	DIR/NAME/snapshot.sha256  for sha256sum -c
//	DIR/NAME/...              other files, for example those of CRIU; the manifest has their hashes
//
// Snapshots share blocks, and a block of zeros or a hole takes nothing. A **Writer** makes a snapshot; a **Snapshot**
// is one that is open, and its blocks stay until it is closed. Blocks are read and written by several threads, past the
// page cache, and verified when they are read. Any number of writers and readers may use a directory at once.
package snapshot
