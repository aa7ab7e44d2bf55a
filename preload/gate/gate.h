/* gate is libtms.so's side of the gate in libtms_reach.so, where that is preloaded too (reach/). It knows no segments
 * and no pauses: its caller decides the order of the steps. */
#ifndef TMS_GATE_H
#define TMS_GATE_H

#include "../goruntime/goruntime.h"
#include "reach/communicators.h"

struct gate_user { /* a thread, and the call that it is in or made last */
	pid_t thread;
	bool lives;
	bool works; /* it gives the device work now */
	bool captures; /* by beginning to capture a stream */
	bool passes; /* it is a thread of this library, which a closed gate does not stop */
	const char *call;
	uintptr_t stream;
};
HIDDEN const char *gate_unusable(void); /* why there is no gate, or NULL if there is one */
HIDDEN int gate_set(enum gate_state state);		 /* an errno */
HIDDEN bool gate_is_closed(void);
HIDDEN bool gate_has_worked(void);	  /* a thread gave the device work since the last call of this, or waits for it */
HIDDEN void gate_stop_allocations(void);  /* until it opens */
HIDDEN int gate_before_allocation(void);  /* waits until allocations are no longer stopped; a code */
HIDDEN int gate_wait(void);		  /* until it is open; a code */
HIDDEN bool gate_look(const void **cursor, struct gate_user *user); /* *cursor is NULL at first; false at the end */
HIDDEN bool gate_inside(struct gate_user *user); /* finds a thread in any call, even one that polls */
HIDDEN bool gate_self_starting(char *name, size_t size); /* a loaded library starts work by itself */
HIDDEN bool gate_knows(uintptr_t address); /* it lies in a library of the program's own namespace (dlmopen) */
HIDDEN uint64_t gate_loads(void);	     /* how many libraries were ever loaded, in all namespaces */
HIDDEN bool nccl_is_unseen(void); /* NCCL may register shareable memory unseen, and use it after a pause */

/* Asks libtms_reach.so (reach/communicators.h). Without that library these functions do nothing. */
#define X(returns, name, parameters, arguments) HIDDEN returns gate_##name parameters;
GATE_ASKED(X)
#undef X
#define X(returns, name, parameters, arguments) HIDDEN returns nccl_##name parameters;
GATE_NCCL(X)
#undef X

/* Around a call that begins a capture, so that no thread counts as capturing while it waits at the gate. */
struct gate_call;
struct gate_mark;
HIDDEN struct gate_mark *gate_enter_capture(const struct gate_call *call, void *stream);
HIDDEN void gate_leave_capture(struct gate_mark *mark);

#endif
