// Package digest finds out which blocks of device memory have changed: it hashes them on the GPU, at the speed of its
// memory. A Span is split into blocks of BlockSize, and each has a Sum.
//
// digest.h has the hash and digest.cu the kernel, which digest.ptx is compiled from; docs/design/digest.md has the
// odds. One lock guards what is loaded and the spare buffers. It is held while the kernel is compiled, not while it
// runs.
package digest
