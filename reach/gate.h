/* gate is what libtms.so closes while it takes memory away, and what every call that gives the device work passes in
 * libtms_reach.so. libtms.so finds it by the one name below, which is NULL where libtms_reach.so is not preloaded. */
#ifndef REACH_GATE_H
#define REACH_GATE_H

#include "communicators.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gate_kind { WORK, CAPTURE, DESTROY, LEND, POLL };

/* What waits at the gate, each with what is before it: nothing; what begins a capture; what gives the device work; what
 * ends streams; what polls, while the driver has the process. */
enum gate_state { GATE_OPEN, GATE_NO_CAPTURES, GATE_CLOSED, GATE_NAMING, GATE_CHECKPOINT };

/* A function of the driver. */
struct gate_call {
	const char *name;
	enum gate_kind kind;
	int since; /* the first CUDA version with it */
	void *entry;	      /* ours */
	_Atomic(void *) real; /* the one behind it; NULL: not looked for yet */
};

/* Of a mark. TRYING: it looks at the gate; INSIDE: the call has begun, or is about to; PASSING: one that goes on while
 * the gate is shut, but for GATE_NAMING. */
enum { OUT, TRYING, INSIDE, PASSING };

/* What a thread shows of itself. Only it writes here, but for stream, which who destroys that sets to 0, taken, and the
 * lowest bit of call, which libtms.so sets when it has seen it. */
struct gate_mark {
	_Alignas(64) _Atomic uint32_t inside;
	_Atomic uint32_t thread; /* as gettid has it */
	/* Of the last call; they stay when it, or the thread, has ended. */
	_Atomic(const struct gate_call *) call; /* NULL: none yet */
	_Atomic uintptr_t stream;
	_Atomic bool taken; /* by a thread that lives */
	_Atomic(const struct gate_call *) polling; /* NULL: the thread is in no call that polls */
};

/* What libtms_reach.so sees of NCCL (nccl.c). Of those who hold and begin there is one at a time. */
struct gate_nccl {
	void (*hold)(bool on);	/* threads wait before they enter NCCL */
	bool (*is_used)(void);	/* somebody is inside, or in the middle of a group */
	/* One after the other, from *cursor 0; false: there are no more. ask: NCCL is asked too, while nobody is inside. */
	bool (*look)(size_t *cursor, bool ask, struct gate_communicator *to);
	bool (*look_at_memory)(size_t *cursor, struct gate_registration *to);
	/* The ranks of this clique are being suspended in all processes at once, so that the next begin does it here; 0: of
	 * none, from now on. */
	void (*together)(uint64_t clique);
	/* Suspends all that can be, or resumes all that this has suspended; false: there were no threads for that, and
	 * nothing is begun. Only while nobody is inside. */
	bool (*begin)(bool suspend);
	bool (*is_busy)(void);	/* that goes on */
	void (*give_up)(void);	/* what is suspended late is resumed at once */
	/* Of those who align ranks there is one at a time. All sequences that are here, as look: each rank's own. */
	bool (*sequences)(size_t *cursor, struct gate_sequence *to);
	bool (*is_launching)(void); /* what has begun is not all launched */
	bool (*has_captured)(void); /* operations, into graphs: those are not counted */
	void (*freeze)(void);	    /* nobody begins one more */
	/* Instead: no more than these; others go free, but for pairs of a communicator whose collectives are named: those
	 * are at 0. */
	void (*limit)(const struct gate_sequence *targets, size_t count);
	void (*release)(void); /* all go on */
};

struct gate {
	const char *(*unusable)(void);	/* the words for why there is no gate; NULL: there is */
	const char *(*not_gated)(void); /* a function that is in use and passes by it; NULL: none */
	bool (*polls)(const char *symbol); /* reports whether the function is of the kind POLL */
	/* 0, or the errno that keeps it from being shut. alive: a byte that is 0 in a child, or NULL. Who is past it
	 * when this returns has a mark that can be seen. An error leaves it open; what holds less than before cannot fail. */
	int (*set)(enum gate_state state, const volatile char *alive);
	/* The marks, one after the other; NULL: the first; the last has NULL after it. None goes away. */
	struct gate_mark *(*next)(const struct gate_mark *mark);
	/* Around a call of the runtime. NULL from enter: the thread is inside already; leave takes that too. */
	struct gate_mark *(*enter)(const struct gate_call *call, uintptr_t stream);
	void (*leave)(struct gate_mark *mark);
	bool (*waited)(void); /* a thread waits for the gate to open, or to be shut in another way */
	/* Addresses of pausable memory that the program has given to others by a handle; 0 ends them, UINTPTR_MAX is that
	 * there are more than could be noted. ranges: of any memory, the first by cuMemGetHandleForAddressRange. */
	uintptr_t (*exported)(size_t index, bool ranges);
	void (*gone)(uintptr_t address); /* that memory is there no more */
	const struct gate_nccl *nccl;
};

extern const struct gate tms_reach_gate __attribute__((weak, visibility("default")));

#endif
