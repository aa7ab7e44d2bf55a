/* reset is the core of cudaDeviceReset: what is ours on the device goes before the context does. */
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"

static void drop(int device)
{
	sigset_t saved;
	if (atomic_load(&go_state) == GO_AWAKE && go_enter(&saved) == SUCCESS) {
		tmsReset(device);
		go_leave(&saved);
	}
}

EXPORT int cudaDeviceReset(void)
{
	int device = 0;
	if (atomic_load(&go_state) == GO_AWAKE && forward_cudaGetDevice(&device) == SUCCESS)
		drop(device);
	return forward_cudaDeviceReset();
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
	drop(device);
	return forward_cuDevicePrimaryCtxReset_v2(device);
}
