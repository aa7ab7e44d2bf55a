/* nccl has what the files for NCCL share: nccl.c interposes NCCL's functions, inside.c knows which threads are inside
 * NCCL, communicators.c and registrations.c list communicators and registered memory, sequence.c counts their collectives, and suspending.c suspends them. It lists
 * the interposed functions (nccl.h of 2.31; older versions lack some):
 *
 *   X(symbol, parameters, arguments, before, result)
 *       before: run first. result: the value returned, given code.
 *   Y(symbol, how many arguments, which of them (a, b ...) are the communicator and the stream, its sequence)
 *       Functions that use a communicator, which counts as used during the call. Buffers come first. The fourth
 *       argument of SENT and RECEIVED is the other rank.
 *
 * Newer functions, and functions that only ask (ncclCommGetAsyncError, ncclCommCount), are not interposed. */
#ifndef REACH_NCCL_H
#define REACH_NCCL_H

#include "reach.h"

#include <sys/types.h>

/* ncclUniqueId, passed by value; ncclConfig_t as far as it is read, which later versions only add to. */
struct nccl_id {
	char internal[128];
};
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

#define NCCL_SEEN(X) \
	X(ncclCommInitRank, (void **comm, int ranks, struct nccl_id id, int rank), (comm, ranks, id, rank), (void)0, \
	  comm_made(code, library, comm, comm_clique(&id, 1), ranks, rank, comm_blocks(NULL, NULL))) \
	X(ncclCommInitRankConfig, \
	  (void **comm, int ranks, struct nccl_id id, int rank, const struct nccl_config *config), \
	  (comm, ranks, id, rank, config), (void)0, \
	  comm_made(code, library, comm, comm_clique(&id, 1), ranks, rank, comm_blocks(config, NULL))) \
	X(ncclCommInitRankScalable, \
	  (void **comm, int ranks, int rank, int ids, const struct nccl_id *id, const struct nccl_config *config), \
	  (comm, ranks, rank, ids, id, config), (void)0, \
	  comm_made(code, library, comm, code == DONE ? comm_clique(id, ids) : 0, ranks, rank, \
		    comm_blocks(config, NULL))) \
	X(ncclCommInitAll, (void **comm, int ranks, const int *devices), (comm, ranks, devices), (void)0, \
	  all_made(code, library, comm, ranks)) \
	X(ncclCommSplit, (void *parent, int color, int order, void **comm, const struct nccl_config *config), \
	  (parent, color, order, comm, config), (void)0, \
	  comm_made_of(code, library, parent, comm, (uint64_t)color, config)) \
	X(ncclCommShrink, \
	  (void *parent, int *without, int count, void **comm, const struct nccl_config *config, int flags), \
	  (parent, without, count, comm, config, flags), (void)0, \
	  comm_made_of(code, library, parent, comm, ~0ull, config)) \
	/* New ranks have no parent, so they cannot be told from ranks of other communicators. */ \
	X(ncclCommGrow, \
	  (void *parent, int ranks, const struct nccl_id *id, int rank, void **comm, \
	   const struct nccl_config *config), \
	  (parent, ranks, id, rank, comm, config), (void)0, \
	  comm_made(code, library, comm, 0, ranks, -1, comm_blocks(config, parent))) \
	X(ncclCommFinalize, (void *comm), (comm), comm_goes(comm), code) \
	X(ncclCommDestroy, (void *comm), (comm), (comm_goes(comm), memory_goes_with(comm)), code) \
	X(ncclCommAbort, (void *comm), (comm), (comm_goes(comm), memory_goes_with(comm)), code) \
	X(ncclCommRegister, (void *comm, void *memory, size_t size, void **handle), (comm, memory, size, handle), \
	  (void)0, \
	  memory_registered(code, library, comm, memory, size, handle, false)) \
	X(ncclCommDeregister, (void *comm, void *handle), (comm, handle), (void)0, \
	  memory_deregistered(code, comm, handle)) \
	X(ncclCommWindowRegister, (void *comm, void *memory, size_t size, void **window, int flags), \
	  (comm, memory, size, window, flags), (void)0, \
	  memory_registered(code, library, comm, memory, size, window, true)) \
	X(ncclCommWindowDeregister, (void *comm, void *window), (comm, window), (void)0, \
	  memory_deregistered(code, comm, window)) \
	X(ncclGroupStart, (void), (), (void)0, started(code)) \
	X(ncclGroupEnd, (void), (), (void)0, ended(code, true)) \
	X(ncclGroupSimulateEnd, (void *result), (result), (void)0, ended(code, false))

#define NCCL_COUNTED(Y) \
	Y(ncclAllGather, 6, e, f, COLLECTIVE) \
	Y(ncclAllReduce, 7, f, g, COLLECTIVE) \
	Y(ncclAlltoAll, 6, e, f, COLLECTIVE) \
	Y(ncclBcast, 6, e, f, COLLECTIVE) \
	Y(ncclBroadcast, 7, f, g, COLLECTIVE) \
	Y(ncclGather, 7, f, g, COLLECTIVE) \
	Y(ncclPutSignal, 11, j, k, UNCOUNTED) \
	Y(ncclRecv, 6, e, f, RECEIVED) \
	Y(ncclReduce, 8, g, h, COLLECTIVE) \
	Y(ncclReduceScatter, 7, f, g, COLLECTIVE) \
	Y(ncclScatter, 7, f, g, COLLECTIVE) \
	Y(ncclSend, 6, e, f, SENT) \
	Y(ncclSignal, 6, e, f, UNCOUNTED) \
	Y(ncclWaitSignal, 4, c, d, UNCOUNTED)

/* Those that libtms_reach.so calls itself. */
#define NCCL_ASKED(X) \
	X(ncclGetVersion) X(ncclCommCount) X(ncclCommUserRank) X(ncclCommCuDevice) X(ncclCommSuspend) \
	X(ncclCommResume) X(ncclCommMemStats)

enum { DONE = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5, IN_PROGRESS = 7 }; /* ncclResult_t */

enum {
#define X(symbol, ...) AT_##symbol,
	NCCL_SEEN(X) NCCL_COUNTED(X) NCCL_ASKED(X)
#undef X
	SYMBOLS
};

/* An NCCL that is loaded. */
struct library {
	_Atomic uintptr_t base; /* 0 in a free slot */
	void *real[SYMBOLS];
};

typedef int version_function(int *);
typedef int count_function(void *, int *);
typedef int suspend_function(void *, int);
typedef int resume_function(void *);
typedef int stats_function(void *, int, uint64_t *);
#define REAL(library, symbol, type) ((type *)(library)->real[AT_##symbol])

static inline int nccl_version(const struct library *library) /* such as 22907, or 0 if unknown */
{
	int version = 0;
	version_function *ask = REAL(library, ncclGetVersion, version_function);
	return ask && ask(&version) == DONE ? version : 0;
}

/* inside.c: around each call of the calling thread. inside_enter returns false while everything is paused and calls are
 * refused. inside_leave fills the thread's group. */
HIDDEN bool inside_enter(void);
HIDDEN void inside_leave(bool fills);
HIDDEN void inside_group_started(void);
HIDDEN bool inside_group_ended(void); /* reports whether that was the outermost */
HIDDEN bool inside_nccl(void); /* the calling thread is */
HIDDEN bool inside_is_outermost(void); /* the calling thread's call is not one that NCCL makes itself */
HIDDEN bool inside_a_group(void);
/* Call these around a wait of a thread that has begun nothing, so that it does not count as inside during the wait.
 * step_out returns false if the thread stays inside, step_in if it may fail and the gate refuses calls. */
HIDDEN bool inside_step_out(void);
HIDDEN bool inside_step_in(bool may_fail);

/* Communicators and registrations have each a place of their own, which is taken and left without a lock. If they are
 * made inside a group, they get their names when the group ends. NCCL then writes the names where the program wants
 * them. */
enum state { FREE, TAKEN, WAITING, LIVE };
#define EACH(name, kind)                                                                                   \
	(struct kind *name = kind##s; name < kind##s + atomic_load_explicit(&kind##s_used, memory_order_relaxed); name++)
#define TAKE(kind)                                                                                         \
	static struct kind *take_##kind(void)                                                              \
	{                                                                                                  \
		for (size_t i = 0; i < sizeof kind##s / sizeof *kind##s; i++) {                            \
			int free_ = FREE;                                                                  \
			if (!atomic_compare_exchange_strong(&kind##s[i].state, &free_, TAKEN))             \
				continue;                                                                  \
			size_t used = atomic_load(&kind##s_used);                                          \
			while (used <= i && !atomic_compare_exchange_weak(&kind##s_used, &used, i + 1))    \
				;                                                                          \
			return &kind##s[i];                                                                \
		}                                                                                          \
		return NULL;                                                                               \
	}

/* sequence.c */
enum counted { UNCOUNTED, COLLECTIVE, SENT, RECEIVED };
struct sequence {
	_Atomic uint64_t begun;	 /* how many here */
	_Atomic uint64_t target; /* a thread that would begin more waits */
	_Atomic uint32_t told;	 /* the last targets that named it */
	_Atomic uint32_t wanted; /* the last targets at which a thread waited */
};
struct pair { /* with one other rank */
	struct sequence sent, received;
};
struct pairs {
	int count;
	struct pair of[];
};

/* communicators.c */
enum phase { RUNNING, SUSPENDING, SUSPENDED, RESUMING, GIVEN_UP, LOST }; /* GIVEN_UP: its caller no longer waits */
enum { COMMUNICATORS = 256 };
struct communicator {
	_Atomic int state;
	void *comm, **where;
	pid_t thread; /* whose group it is */
	struct library *library;
	uint64_t clique; /* the same for all ranks, or 0 if not known */
	int ranks;
	int rank; /* negative if not known */
	bool blocking;
	uint32_t children; /* made from it, by all ranks in one order */
	_Atomic int phase, code;
	_Atomic bool together; /* its ranks in other processes are being suspended, too */
	struct sequence collectives;
	_Atomic(struct pairs *) pairs;
	_Atomic uint64_t group;	 /* that used it last */
	_Atomic bool uncounted; /* it is no longer known how far it has come */
};
/* The driver's functions that a suspension calls. They are found when a communicator is made, because a thread that
 * waits for a resume may have the loader's lock. */
extern struct comm_driver {
	int (*_Atomic retain)(void **, int), (*_Atomic set_current)(void *), (*_Atomic release)(int);
} comm_driver HIDDEN;
extern struct communicator communicators[COMMUNICATORS] HIDDEN;
extern _Atomic size_t communicators_used HIDDEN; /* how many are looked at */
HIDDEN struct communicator *comm_find(const void *comm); /* or NULL */
HIDDEN uint64_t comm_clique(const struct nccl_id *ids, int count); /* of those with these ids */
HIDDEN uint64_t comm_clique_here(void);			       /* of one whose ranks are all here: a new one each time */
HIDDEN bool comm_blocks(const struct nccl_config *config, const void *parent); /* parent: or NULL */
/* Notes what a call has made, or will have made at the end of its group, and returns the call's result. */
HIDDEN int comm_made(int code, struct library *library, void **where, uint64_t clique, int ranks, int rank,
		     bool blocking);
HIDDEN int comm_made_of(int code, struct library *library, void *from, void **where, uint64_t what,
			const struct nccl_config *config);
HIDDEN void comm_goes(void *comm);
HIDDEN void comm_group_ended(bool good, bool done);
HIDDEN int comm_here(const struct communicator *c); /* how many ranks of the same clique are here, this one included */

/* registrations.c: notes memory of the device that a library, which is not NCCL, uses from now on under a handle. */
struct registrar {
	const char *with, *call, *undone_by; /* with is NULL for NCCL */
};
HIDDEN void memory_noted(const struct registrar *by, uintptr_t address, size_t size, void *handle);
HIDDEN void memory_forgotten(const char *with, void *handle);
/* The same with handles that mean something within another one alone, and may be there several times. */
HIDDEN void memory_noted_of(void *of, const struct registrar *by, uintptr_t address, size_t size, void *handle);

/* The same for NCCL: notes what a call with this result has done, and returns the result. */
HIDDEN int memory_registered(int code, struct library *library, void *comm, void *memory, size_t size, void **where,
			     bool window);
HIDDEN int memory_deregistered(int code, void *comm, void *handle);
HIDDEN void memory_goes_with(void *comm);
HIDDEN void memory_group_ended(bool good);
/* Reports whether the stream is being captured, and then notes the buffers. */
HIDDEN bool memory_captured(struct library *library, const char *call, uintptr_t first, uintptr_t second,
			    uintptr_t stream);

/* sequence.c: around an operation, which is not launched if it is not good; at the end of the thread's outermost
 * group. */
/* *of is NULL if the operation is not counted. Returns false if another thread destroyed the communicator while this
 * one waited. */
HIDDEN bool sequence_begin(void *comm, enum counted counted, int peer, struct sequence **of);
HIDDEN void sequence_ended(struct sequence *s, bool good);
HIDDEN void sequence_group_ended(bool launched);
HIDDEN void sequence_captured(void); /* an operation was, into a graph */

/* The answers to libtms.so; each file has some of them. */
#define X(returns, name, parameters, arguments) HIDDEN returns nccl_##name parameters;
GATE_NCCL(X)
#undef X

#endif
