/* obstacles notes what the driver's checkpoint of this process cannot take. */
#include "parts.h"
#include "forward.h"
#include "words.h"

/* One of the calls after which the driver may lose the process (NVIDIA's notes on cuda-checkpoint), or the process may
 * not come back (multicast: NCCL's issues 2117 and 2337). It stays; handles.c knows when memory shared by handles is
 * gone. */
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

#define X(call, count, ...)                                                                        \
	EXPORT int call(PARAMETERS_##count(__VA_ARGS__))                                           \
	{                                                                                          \
		return obstacle_note(#call, forward_##call(PASS_##count));                         \
	}
#define N(since, ...) X(__VA_ARGS__)
FORWARD_OBSTACLES(X, N)
