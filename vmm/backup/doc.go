// Package backup keeps the contents of device memory while the memory itself is gone. It has the interface of all
// stores; packages host, disk and peer are the stores.
//
// The Jobs of one transition share one Budget of host memory, because they take it side by side.
//
// The stores share what is in internal: pinned (buffers of registered host memory), copying (copies on a stream,
// reported as they are done). What they give back goes through package reclaim, in the background, since the caller may
// hold the engine's lock. Stores call no package above.
package backup
