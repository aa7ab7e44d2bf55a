// Package disk keeps contents of device memory in files without a name, which end with the process, however it ends.
//
// Locks: of the store (its configuration), contents (which section is theirs), a transfer (its chunks), an open file
// (its descriptor), a file (its sections). No thread holds two at once.
package disk
