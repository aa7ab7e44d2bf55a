// Package sets has the memory that no process owns: the keeper holds it, and commands move and verify it.
//
// The **Keeper** is a process that holds named **sets** of descriptors of device memory, each with a **manifest** that
// only its users read, and reserved host memory. It calls no CUDA and copies nothing. Each user has one, at a socket
// beside those of the user's processes (package control). The first process that needs the keeper starts it
// (StartKeeper), and Ask asks it.
//
// A set consists of **chunks**. It has a **maker**, which is filling it, until it is **sealed**. Then it has a name,
// and **users**, which may have it mapped or paused. A later set takes over the name, and a drop takes it away: the
// keeper then closes the set when no process uses it any longer. Processes that have ended count no more.
//
// Move copies a set to another **place**: host memory, disk, or back to its device. The copy is another set, which
// takes over the name when it is complete. A copy that ends before that leaves the set where it was. Excess chooses
// the sets to move for a budget, and Verify compares a set with what was published (package checksum, a package of its
// own because libtms.so needs it, and no more of this one).
//
// Reserved host memory is **extents**. A process that takes one is its only owner, until it gives it back. When a
// process ends, the system gets its extents, and no other process does: its device may still write there.
//
// A keeper that was killed is followed by another, which asks all processes that listen what they have attached.
package sets
