/* gate is libtms.so's side of the gate in libtms_reach.so, where that is preloaded too (reach/). It knows no segments
 * and no pauses: its caller decides the order of the steps. */
#ifndef TMS_GATE_H
#define TMS_GATE_H

#include "../goruntime/goruntime.h"
#include "reach/communicators.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* gate.c: the gate, and what it cannot hold. */
struct gate_user { /* a thread, and the call that it is in or made last */
	pid_t thread;
	bool lives;
	bool works, inside; /* it gives the device work now; it is inside any call, such as one that ends a stream */
	const char *call;
	uintptr_t stream;
};
HIDDEN const char *gate_unusable(void);	 /* why there is no gate; NULL: there is one */
HIDDEN const char *gate_not_gated(void); /* a function in use that bypasses it; NULL: none */
HIDDEN int gate_set(enum gate_state state);		 /* an errno */
HIDDEN bool gate_is_shut(void);
HIDDEN bool gate_has_worked(void);	  /* a thread gave the device work since the last call of this, or does now */
HIDDEN bool gate_is_waited_for(void);	  /* a thread waits at it while it is shut */
HIDDEN void gate_hold_allocations(void);  /* until it opens */
HIDDEN void gate_before_allocation(void); /* waits until allocations are no longer held */
HIDDEN void gate_wait(void);		  /* until it is open */
HIDDEN bool gate_look(const void **cursor, struct gate_user *user); /* *cursor: NULL at first; false: no more */
HIDDEN bool gate_inside(struct gate_user *user); /* a thread in any call, even one that polls; false: none */
HIDDEN bool gate_polls(const char *symbol); /* such calls wait at the gate only for the driver's checkpoint */
HIDDEN uintptr_t gate_exported(size_t index, bool ranges); /* where exported memory begins; 0: no more; as reach/gate.h */
HIDDEN void gate_gone(uintptr_t address); /* the memory there was freed since */
HIDDEN bool gate_self_starting(char *name, size_t size); /* a loaded library starts work by itself */

/* nccl.c: NCCL as libtms_reach.so sees it (reach/communicators.h). Without that library these do nothing. */
HIDDEN bool nccl_is_unseen(void); /* NCCL may register shareable memory unseen, and use it after a pause */
#define X(returns, name, parameters, arguments) HIDDEN returns nccl_##name parameters;
GATE_NCCL(X)
#undef X

/* Around a call that begins a capture, so that no thread counts as capturing while it waits at the gate. */
struct gate_call;
struct gate_mark;
HIDDEN struct gate_mark *gate_enter_capture(const struct gate_call *call, void *stream);
HIDDEN void gate_leave_capture(struct gate_mark *mark);

#endif
