/* nccl lists the functions of NCCL that libtms_reach.so stands in front of (nccl.h of 2.31; older ones lack some):
 *
 *   X(symbol, parameters, arguments)    nccl.c has what each does beside the call, of a library
 *   Y(symbol, how many arguments)       those that use a communicator, and are counted while they do: buffers come
 *                                       first, the stream last
 *
 * What is newer, and what only asks (ncclCommGetAsyncError, ncclCommCount), goes past. */
#ifndef REACH_NCCL_H
#define REACH_NCCL_H

#include <stddef.h>

/* ncclUniqueId, passed by value; ncclConfig_t as far as it is read, which later versions only add to. */
struct nccl_id {
	char internal[128];
};
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

#define NCCL_SEEN(X)                                                                                        \
	X(ncclCommInitRank, (void **comm, int ranks, struct nccl_id id, int rank), (library, comm, ranks, id, rank)) \
	X(ncclCommInitRankConfig,                                                                           \
	  (void **comm, int ranks, struct nccl_id id, int rank, const struct nccl_config *config),          \
	  (library, comm, ranks, id, rank, config))                                                         \
	X(ncclCommInitRankScalable,                                                                         \
	  (void **comm, int ranks, int rank, int ids, const struct nccl_id *id, const struct nccl_config *config), \
	  (library, comm, ranks, rank, ids, id, config))                                                    \
	X(ncclCommInitAll, (void **comm, int ranks, const int *devices), (library, comm, ranks, devices))   \
	X(ncclCommSplit, (void *parent, int color, int order, void **comm, const struct nccl_config *config), \
	  (library, parent, color, order, comm, config))                                                    \
	X(ncclCommShrink,                                                                                   \
	  (void *parent, int *without, int count, void **comm, const struct nccl_config *config, int flags), \
	  (library, parent, without, count, comm, config, flags))                                           \
	X(ncclCommGrow,                                                                                     \
	  (void *parent, int ranks, const struct nccl_id *id, int rank, void **comm, const struct nccl_config *config), \
	  (library, parent, ranks, id, rank, comm, config))                                                 \
	X(ncclCommFinalize, (void *comm), (library, comm))                                                  \
	X(ncclCommDestroy, (void *comm), (library, comm))                                                   \
	X(ncclCommAbort, (void *comm), (library, comm))                                                     \
	X(ncclCommRegister, (void *comm, void *memory, size_t size, void **handle),                         \
	  (library, comm, memory, size, handle))                                                            \
	X(ncclCommDeregister, (void *comm, void *handle), (library, comm, handle))                          \
	X(ncclCommWindowRegister, (void *comm, void *memory, size_t size, void **window, int flags),        \
	  (library, comm, memory, size, window, flags))                                                     \
	X(ncclCommWindowDeregister, (void *comm, void *window), (library, comm, window))                    \
	X(ncclGroupStart, (void), (library))                                                                \
	X(ncclGroupEnd, (void), (library))                                                                       \
	X(ncclGroupSimulateEnd, (void *result), (library, result))

#define NCCL_COUNTED(Y)                                                                                    \
	Y(ncclAllGather, 6)                                                                                \
	Y(ncclAllReduce, 7)                                                                                \
	Y(ncclAlltoAll, 6)                                                                                 \
	Y(ncclBcast, 6)                                                                                    \
	Y(ncclBroadcast, 7)                                                                                \
	Y(ncclGather, 7)                                                                                   \
	Y(ncclPutSignal, 11)                                                                               \
	Y(ncclRecv, 6)                                                                                     \
	Y(ncclReduce, 8)                                                                                   \
	Y(ncclReduceScatter, 7)                                                                            \
	Y(ncclScatter, 7)                                                                                  \
	Y(ncclSend, 6)                                                                                     \
	Y(ncclSignal, 6)                                                                                   \
	Y(ncclWaitSignal, 4)

#endif
