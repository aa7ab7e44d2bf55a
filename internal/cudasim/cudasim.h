// The simulator's own C interface, for tests: find it with dlsym in the loaded libcuda.so.1.
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stdint.h>

// Returns a number of the simulator's state, a count unless it says bytes:
//   handles, handle_bytes             live physical handles (cuMemCreate) and their bytes
//   reservations, reserved_bytes      address ranges (cuMemAddressReserve)
//   mappings, mapped_bytes            mappings of handles (cuMemMap)
//   allocations, allocation_bytes     cuMemAlloc and cuMemAllocAsync
//   registrations, registered_bytes   cuMemHostRegister
//   host_allocations, host_bytes      cuMemHostAlloc and cuMemAllocHost
//   pinned_bytes                      registered_bytes + host_bytes
//   contexts, streams, events, graphs, graph_execs, libraries
//   pending                           async operations not executed yet
//   devices, granularity
//   total:DEV, used:DEV, free:DEV     bytes of device DEV (0, 1, ...), of all processes that share it (CUDASIM_SHARED)
//   calls:NAME                        calls since start or reset of a driver function, version suffix or not
// UINT64_MAX: an unknown name.
uint64_t cudasim_stat(const char *name);

// Makes the nth call from now (1 = the next) of a driver function return code without doing anything, once. code 0
// drops all failures planned for that function. The name may have its version suffix; an unknown one is only reported
// on stderr. -1 kills the process. With -2 the call stands until failures are dropped, and then does what it is for.
void cudasim_fail(const char *function, int nth, int code);

// Drops all planned failures, those of CUDASIM_FAIL included.
void cudasim_clear_failures(void);

// How many planned failures have fired since start or reset.
uint64_t cudasim_failures_fired(void);

// Drops all state (memory, mappings, reservations, contexts, streams, counters), and reads the environment again.
// Pointers and handles from before are invalid; call cuInit again. No other thread may be inside a CUDA call. It does
// nothing in a child forked after cuInit.
void cudasim_reset(void);

#endif
