// Package peer keeps contents of device memory in free memory of other GPUs, or in host memory that was reserved for
// all processes. What finds no room there goes to a store of host memory.
//
// A Save takes one range of each device that it uses: chunks, a handle each, at consecutive addresses, so that
// contents may lie across several. A chunk is given back when the last contents that reach into it are discarded, and
// the addresses with the last chunk.
//
// The driver's checkpoint takes what a process has mapped. So the memory of a portable Save, and reserved memory, is
// mapped only during a Save or a Load: otherwise descriptors alone keep it. Locks: taking, held while memory is taken;
// then mu, over the count of what is held.
package peer
