// Package digest tells which blocks of device memory have changed: it hashes them on the GPU, at the
// speed of its memory. A Span is split in blocks of BlockSize, and each has a Sum.
//
// digest.h has the hash and digest.cu the kernel, which digest.ptx is compiled from; docs/rationale.md has the
// odds. One lock, over what is loaded and the spare buffers: it is held while the kernel is compiled, not while it
// runs.
package digest
