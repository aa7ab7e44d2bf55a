/* reach has what the files of libtms_reach.so use from each other. */
#ifndef REACH_H
#define REACH_H

#include "gate.h"

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* reach.c: the answers of dlsym and dlvsym as if this library were not there. */
typedef void *reach_find(void *handle, const char *name);
extern reach_find *_Atomic reach_dlsym HIDDEN;
typedef void *reach_find_version(void *handle, const char *name, const char *version);
extern reach_find_version *_Atomic reach_dlvsym HIDDEN;
HIDDEN bool reach_is_hooked(void); /* another library's dlsym stands behind this one's */
extern reach_find *reach_c_dlsym HIDDEN; /* the C library's: the next one, unless another library stands between */
typedef void *answer_driver(const char *name, void *theirs, const void *caller);
extern answer_driver *_Atomic reach_tms HIDDEN; /* of libtms.so, or NULL if that is not loaded */
HIDDEN void reach_prepare(void); /* before these are read */
HIDDEN void *reach_next(const char *name); /* what a call goes on to: of the libraries after this one, or the driver's */
HIDDEN void *reach_look(const char *name); /* the same, of a library that may be closed */
HIDDEN void *reach_in_driver(const char *symbol); /* as the next dlsym answers; or NULL */
/* Returns the function that a caller would be bound to without this library: in the program's own libraries, else in
 * libraries that the caller needs (loaded with RTLD_LOCAL), else in a loaded library whose name begins so; or NULL. */
HIDDEN void *reach_bound(const void *caller, const char *name, const char *library);
HIDDEN bool reach_is_here(const void *function); /* it is one of this library's */
HIDDEN bool reach_is_pausable(uintptr_t address); /* or may be */
/* Asks other processes to make room for bytes on a device, and reports whether they have, which may take as long as
 * their turns. Device -1 is the current one, and 0 bytes are an unknown number. reach_room returns NULL in a process
 * that does not share its devices. */
typedef bool make_room(int device, size_t bytes);
HIDDEN make_room *reach_room(void);
/* The driver has refused a call's arguments: libtms.so says so where memory that the program has paused is why. */
typedef void tell_refused(const char *call);
HIDDEN void reach_refused(const char *call);
HIDDEN const char *reach_misplaced(void); /* why this library's place among the others is wrong, or NULL */

/* calls.c: the functions that pass the gate. */
HIDDEN void *calls_entry(const char *symbol, void *theirs); /* the entry for a function of the driver, or NULL */

/* rdma.c */
HIDDEN void *rdma_entry(const char *symbol, void *theirs); /* for a function that registers memory, or NULL */

/* nccl.c */
HIDDEN void *nccl_entry(const char *symbol, void *theirs); /* for a function of an NCCL, or NULL */
extern const struct gate_nccl nccl_gate HIDDEN;

/* calls.c, gate.c: the answers to libtms.so. */
#define X(returns, name, parameters, arguments) HIDDEN returns gate_##name parameters;
GATE_ASKED(X)
#undef X

/* gate.c: the marks. */
extern __thread struct gate_mark *gate_mine __attribute__((tls_model("initial-exec"))) HIDDEN;
extern _Atomic uint32_t gate_state HIDDEN;

/* The whole way in. Returns NULL if the thread is inside already, NO_MARK if there is no memory for a mark, and REFUSED
 * if calls are refused (gate_refuse). gate_leave must follow, except on NO_MARK and REFUSED. */
#define NO_MARK ((struct gate_mark *)1)
#define REFUSED ((struct gate_mark *)2)
HIDDEN struct gate_mark *gate_enter(const struct gate_call *call, uintptr_t stream);
HIDDEN bool gate_saw_capture(void); /* one has begun at some time */
/* A waiter asks for the number of the last change, looks whether its wait is over, and sleeps until the next change. */
HIDDEN uint32_t gate_change(void);
HIDDEN void gate_wait_for_change(uint32_t seen);
HIDDEN void gate_changed(void);
HIDDEN struct gate_mark *gate_pass(const struct gate_call *call); /* NULL if there is no memory for a mark */

/* The short way in. Returns NULL if the whole way is needed. */
static inline __attribute__((always_inline)) struct gate_mark *gate_try(const struct gate_call *call, uintptr_t stream)
{
	struct gate_mark *mine = gate_mine;
	if (likely(mine) && likely(atomic_load_explicit(&mine->inside, memory_order_relaxed) == OUT)) {
		atomic_store_explicit(&mine->call, call, memory_order_relaxed);
		atomic_store_explicit(&mine->stream, stream, memory_order_relaxed);
		atomic_store_explicit(&mine->inside, TRYING, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (likely(atomic_load_explicit(&gate_state, memory_order_relaxed) == GATE_OPEN)) {
			atomic_store_explicit(&mine->inside, INSIDE, memory_order_relaxed);
			atomic_signal_fence(memory_order_seq_cst);
			return mine;
		}
		atomic_store_explicit(&mine->inside, OUT, memory_order_release);
	}
	return NULL;
}

static inline void gate_leave(struct gate_mark *mark)
{
	if (likely(mark))
		atomic_store_explicit(&mark->inside, OUT, memory_order_release);
}

/* Around a call that polls: only the driver's checkpoint waits for a thread in such a call, and only it keeps a thread
 * out. The mark is NULL where the short way in does not suffice. Such calls may nest (a signal handler), so leaving
 * restores what was. */
struct gate_poll {
	struct gate_mark *mark;
	const struct gate_call *outer;
};
HIDDEN struct gate_poll gate_enter_poll(const struct gate_call *call);

static inline __attribute__((always_inline)) struct gate_poll gate_try_poll(const struct gate_call *call)
{
	struct gate_poll poll = {gate_mine, NULL};
	if (likely(poll.mark)) {
		poll.outer = atomic_load_explicit(&poll.mark->polling, memory_order_relaxed);
		atomic_store_explicit(&poll.mark->polling, call, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (likely(atomic_load_explicit(&gate_state, memory_order_relaxed) != GATE_CHECKPOINT))
			return poll;
		atomic_store_explicit(&poll.mark->polling, poll.outer, memory_order_release);
		poll.mark = NULL;
	}
	return poll;
}

static inline void gate_leave_poll(struct gate_poll poll)
{
	atomic_store_explicit(&poll.mark->polling, poll.outer, memory_order_release);
}

#endif
