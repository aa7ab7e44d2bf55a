/* gate stops the program at safepoints: libtms.so closes it while it takes memory away, and every call that gives
 * the device work passes it, in libtms_reach.so. libtms.so finds it by the one name below, which is NULL without
 * libtms_reach.so. */
#ifndef REACH_GATE_H
#define REACH_GATE_H

#include "communicators.h"

#include <stdatomic.h>

enum gate_kind { WORK, CAPTURE, LEND, POLL, PASS }; /* calls.h */

/* A function of the driver. */
struct gate_call {
	const char *name;
	enum gate_kind kind;
	bool again; /* where it found too little memory, if others make room */
	_Atomic(void *) real; /* the driver's function, or NULL while not found or while calls go the whole way */
	_Atomic(void *) found; /* the same function, or NULL only while not found */
};

/* The states of a mark. At TRYING the thread looks at the gate. At INSIDE its call has begun or is about to begin. */
enum { OUT, TRYING, INSIDE };

/* A thread shows its state here. Other threads write only two things: taken, and the lowest bit of call, which
 * libtms.so sets when it has seen that call. */
struct gate_mark {
	_Alignas(64) _Atomic uint32_t inside;
	_Atomic uint32_t thread; /* as gettid has it */
	/* The last call's; they stay after the call, or the thread, has ended. */
	_Atomic(const struct gate_call *) call; /* NULL before the first */
	_Atomic uintptr_t stream; /* which may have been destroyed */
	_Atomic bool taken; /* by a thread that lives */
	_Atomic(const struct gate_call *) polling; /* NULL if the thread is in no call that polls */
};

#define X(returns, name, parameters, arguments) returns (*name) parameters;
struct gate_nccl { /* nccl.c */
	GATE_NCCL(X)
};

struct gate {
	GATE_ASKED(X)
	const char *(*unusable)(void); /* why there is no gate, or NULL if there is one */
	/* Returns 0, or the errno that keeps the gate from closing. alive: a byte that is 0 in a child, or NULL. A
	 * thread that is past the gate when this returns has a visible mark. An error leaves the gate open; stopping
	 * less cannot fail. */
	int (*set)(enum gate_state state, const volatile char *alive);
	/* The marks, one after the other: after NULL comes the first, and after the last comes NULL. None goes away. */
	struct gate_mark *(*next)(const struct gate_mark *mark);
	/* Around a call of the runtime. enter returns NULL for a thread that is inside already; leave takes NULL
	 * too. */
	struct gate_mark *(*enter)(const struct gate_call *call, uintptr_t stream);
	void (*leave)(struct gate_mark *mark);
	const struct gate_nccl *nccl;
};
#undef X

extern const struct gate tms_reach_gate __attribute__((weak, visibility("default")));

#endif
