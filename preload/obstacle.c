/* obstacle notes what rules out the driver's checkpoint of a process: managed memory, multicast objects, and memory
 * that processes share. The driver may lose a process that has any (NVIDIA's notes on cuda-checkpoint), or the process
 * may not come back (multicast: NCCL's issues 2117 and 2337). For memory that is shared by handles, shared.c knows when
 * it is gone; what is noted here stays. */
#include "shim.h"

static const char *_Atomic obstacle;

HIDDEN int obstacle_note(const char *call, int code)
{
	if (code == SUCCESS)
		atomic_store(&obstacle, call);
	return code;
}

HIDDEN const char *obstacle_noted(void)
{
	return atomic_load(&obstacle);
}
