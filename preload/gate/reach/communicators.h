/* communicators has what libtms_reach.so, libtms.so and Go share: the gate's states, NCCL's communicators, and what
 * libtms.so asks libtms_reach.so. */
#ifndef REACH_COMMUNICATORS_H
#define REACH_COMMUNICATORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Says which calls wait at the gate. Each state adds calls to the state before: no calls, calls that begin a capture,
 * calls that give the device work but for those of threads that are let in, those too, and calls that poll, while the
 * driver has the process. */
enum gate_state { GATE_OPEN, GATE_NO_CAPTURES, GATE_ORDERED, GATE_CLOSED, GATE_CHECKPOINT };

struct gate_communicator {
	int version;	      /* of its NCCL, such as 22907, or 0 if unknown */
	bool suspended, busy; /* by begin; or begin has not returned */
	bool lost;	      /* it was suspended, and could not be resumed */
	int code;	      /* of a suspend or resume that has failed, an ncclResult_t; else 0 */
	const char *obstacle; /* why it cannot be suspended, or NULL if it can be or is suspended */
	bool apart;	      /* some of its ranks are in other processes, and nothing else prevents it */
	uint64_t clique;      /* the same for all ranks, and for no other communicator of several processes */
	int ranks, here;      /* all ranks, and the ranks in this process */
	uint64_t total, suspendable; /* bytes, from ncclCommMemStats, or 0 if unknown */
};

/* Operations that the ranks of a communicator count alike: its collectives (from and to are -1), or the sends from one
 * rank to another. */
struct gate_sequence {
	uint64_t clique;
	int ranks, from, to;
	uint64_t number; /* how many have begun here; or in a target, how many may begin */
	bool wanted;	 /* a thread waits to begin another one */
};

/* Memory that is registered with a device or a communicator, or may be: it was used in a CUDA graph. */
struct gate_registration {
	uintptr_t address;
	size_t size; /* SIZE_MAX: there is more than could be noted */
	const char *with; /* NULL for NCCL, whose version follows */
	const char *call, *undone_by; /* undone_by is NULL if the memory was used in a graph */
	int version;
};

/* libtms.so asks libtms_reach.so these questions about the gate: X(returns, name, parameters, arguments). */
#define GATE_ASKED(X) \
	X(const char *, not_gated, (void), ()) /* a function in use that bypasses the gate, or NULL */ \
	X(bool, polls, (const char *symbol), (symbol)) /* such calls wait only for the driver's checkpoint */ \
	X(bool, is_waited_for, (void), ()) /* a thread waits for another state */ \
	X(void, refuse, (bool on), (on)) /* calls that would wait fail, until the gate opens */ \
	X(bool, refuses, (void), ()) \
	X(void, order, (uint64_t number), (number)) /* GATE_ORDERED lets threads in that were let in to this order */ \
	X(void, let_in, (uint64_t number), (number)) /* the calling thread is, from now on; 0: to no order */

/* And about NCCL: X(returns, name, parameters, arguments). One caller at a time stops
 * and begins, and one aligns ranks. Some functions go through entries, from *cursor 0 on, and return false at the
 * end. */
#define GATE_NCCL(X) \
	X(void, stop, (bool on), (on)) /* threads wait before they enter NCCL */ \
	X(bool, is_used, (void), ()) /* a thread is inside, or in the middle of a group */ \
	/* With ask it asks NCCL too: use that only while no thread is inside. */ \
	X(bool, look, (size_t *cursor, bool ask, struct gate_communicator *to), (cursor, ask, to)) \
	X(bool, look_at_memory, (size_t *cursor, struct gate_registration *to), (cursor, to)) \
	/* The ranks of this clique are being suspended in all processes at once, so the next begin suspends them here; \
	 * 0: no clique, from now on. */ \
	X(void, together, (uint64_t clique), (clique)) \
	/* Suspends all that can be, or resumes all that it has suspended. Returns false if there were no threads for \
	 * that; then nothing has begun. Call it only while no thread is inside. */ \
	X(bool, begin, (bool suspend), (suspend)) \
	X(bool, is_busy, (void), ()) /* that is in progress */ \
	X(void, give_up, (void), ()) /* resumes at once what is suspended late */ \
	X(bool, sequences, (size_t *cursor, struct gate_sequence *to), (cursor, to)) /* each rank's own */ \
	X(bool, is_launching, (void), ()) /* some begun operations are not launched */ \
	X(bool, has_captured, (void), ()) /* operations, into graphs: those are not counted */ \
	X(void, freeze, (void), ()) /* no thread begins another one */ \
	/* Limits the named sequences to these numbers. Others have no limit, except that a pair has the limit 0 if \
	 * the collectives of its communicator are named. */ \
	X(void, limit, (const struct gate_sequence *targets, size_t count), (targets, count)) \
	X(void, release, (void), ()) /* all go on */

#endif
