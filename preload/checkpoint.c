/* checkpoint notes that the driver's checkpoint of this process was asked for, because the process's CUDA calls wait from
 * then on. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <unistd.h>

static _Atomic bool asked, pending;

HIDDEN bool checkpoint_asked(void)
{
	return atomic_load(&asked);
}

HIDDEN void checkpoint_set(bool now)
{
	atomic_store(&pending, now);
	atomic_store(&asked, now);
}

HIDDEN bool checkpoint_pending(void)
{
	return atomic_load(&pending);
}

HIDDEN void checkpoint_set_pending(bool now)
{
	atomic_store(&pending, now);
}

HIDDEN int checkpoint_refuse(void)
{
	return error_fail(ERROR_NOT_SUPPORTED, "everything of this process is paused, the driver's part too: its CUDA "
					       "calls wait. Resume it first");
}

HIDDEN bool checkpoint_driver_has(void)
{
	enum { RUNNING = 0 }; /* a CUprocessState; a process may ask for its own, even while its other calls wait */
	int state = RUNNING;
	return forward_cuCheckpointProcessGetState(getpid(), &state) == SUCCESS && state != RUNNING;
}
