/* reset is the core of the end of a device's context: what is ours there goes before it does, and what we
 * know of it after. */
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"

static void drop(int device)
{
	struct visit saved;
	if (go_now() == GO_AWAKE && go_enter(&saved) == SUCCESS) {
		tmsReset(device);
		go_leave(&saved);
	}
}

/* The device's context while it is there and captures may be going on in it; else NULL. */
static void *captured_context(int device)
{
	void *context = NULL;
	if (atomic_load(&captures) != 0 && forward_cuDevicePrimaryCtxRetain(&context, device) == SUCCESS)
		forward_cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

static void forget(int device, const void *context)
{
	access_forget(device);
	if (context)
		captures_forget(context);
}

EXPORT int cudaDeviceReset(void)
{
	int device = 0;
	if ((go_now() != GO_AWAKE && atomic_load(&captures) == 0) ||
	    forward_cudaGetDevice(&device) != SUCCESS)
		return forward_cudaDeviceReset();
	drop(device);
	void *context = captured_context(device);
	int code = forward_cudaDeviceReset();
	if (code == SUCCESS)
		forget(device, context);
	return code;
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
	drop(device);
	void *context = captured_context(device);
	int code = forward_cuDevicePrimaryCtxReset_v2(device);
	if (code == SUCCESS)
		forget(device, context);
	return code;
}

/* The last reference is never a host's where we have segments: the engine keeps one of its own. */
EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	void *context = captured_context(device);
	int code = forward_cuDevicePrimaryCtxRelease_v2(device), active = 1;
	unsigned flags = 0;
	if (code == SUCCESS && forward_cuDevicePrimaryCtxGetState(device, &flags, &active) == SUCCESS && !active)
		forget(device, context);
	return code;
}
