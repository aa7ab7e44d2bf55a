/* free is the core of how much memory is free: what was freed beside live neighbours is still held, but
 * the next allocation that needs it gets it (reclaim.c), so it counts. */
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"

static void add_slack(size_t *bytes, int code, int (*current)(int *))
{
	int device = 0;
	sigset_t saved;
	if (code != SUCCESS || !bytes || (atomic_load_explicit(&arena_count, memory_order_acquire) & ~ARENAS_TRACED) == 0 ||
	    atomic_load(&go_state) != GO_AWAKE || current(&device) != SUCCESS || go_enter(&saved) != SUCCESS)
		return;
	*bytes += tmsSlack(device);
	go_leave(&saved);
}

EXPORT int cudaMemGetInfo(size_t *bytes, size_t *total)
{
	int code = forward_cudaMemGetInfo(bytes, total);
	add_slack(bytes, code, forward_cudaGetDevice);
	return code;
}

EXPORT int cuMemGetInfo_v2(size_t *bytes, size_t *total)
{
	int code = forward_cuMemGetInfo_v2(bytes, total);
	add_slack(bytes, code, forward_cuCtxGetDevice);
	return code;
}
