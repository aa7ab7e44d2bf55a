// Package disk keeps contents of device memory in files, one for each span, that are removed when they are
// discarded, or by the next process if theirs was killed.
//
// Locks: of the store (its configuration), a directory (its references), contents (which file is theirs), a
// transfer (its chunks), an open file (its descriptor). Nobody holds two at once, except that of self (the identity of
// this process), which is taken under the first two.
package disk
