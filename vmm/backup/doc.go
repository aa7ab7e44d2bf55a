// Package backup keeps the contents of device memory while the memory itself is gone. It has what all stores show to
// their users; packages host, disk and peer are the stores.
//
// A Job is a device that a Store works for, an Item a Span of its memory to save. Save makes Contents of it, until
// Discard; a Loader brings them back. The next Save overwrites a kept Contents, and where only parts of the span have
// changed, those Ranges.
//
// The Jobs of one transition have one Budget of host memory, for they take it side by side.
//
// What the stores share below is in internal: pinned (buffers of registered host memory), copying (copies on a
// stream, reported as they are done). What they give back goes through
// package reclaim, in the background, since the caller may hold the engine's lock. Stores call nobody above.
package backup
