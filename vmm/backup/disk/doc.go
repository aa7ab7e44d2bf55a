// Package disk keeps contents of device memory in files, one for each span, that are removed when they are
// discarded, or by the next process if theirs was killed.
//
//	disk.go       Store: which directory, and Save and Load
//	directory.go  a directory, and the lock in it that says whose files are in use
//	file.go       a file: made, opened again, written and read past the page cache
//	transfer.go   the threads that move chunks between device and files, over pinned staging buffers
//	leftovers.go  files of processes that are dead: how that is known
//	errors.go     what was being done to which path, and what to do
//	system.go     the system calls that tests can have fail
//
// Locks: of the store (its configuration), a directory (its references), contents (which file is theirs), a
// transfer (its chunks), an open file (its descriptor). No two are held at once, but for that of self, who this
// process is, which is taken under the first two.
package disk
