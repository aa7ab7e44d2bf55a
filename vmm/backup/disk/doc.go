// Package disk keeps contents of device memory in files, one for each span, that are removed when they are
// discarded, or by the next process if theirs was killed.
//
//	disk.go       Store: which directory, and Save and Load
//	directory.go  a directory, and the lock in it that keeps the files of a living process
//	file.go       a file: made, opened again, written and read past the page cache
//	transfer.go   the threads that move chunks between device and files, over pinned staging buffers
//	leftovers.go  files of dead processes, and how to tell
//	errors.go     what was being done to which path, and what to do
//	system.go     the system calls that tests can have fail
//
// Locks: of the store (its configuration), a directory (its references), contents (which file is theirs), a
// transfer (its chunks), an open file (its descriptor). Nobody holds two at once, except that of self (the identity of
// this process), which is taken under the first two.
package disk
