/* access is the core of devices that come to use the memory of others. cudaMalloc's memory could be copied
 * with any device current; mapped memory must be told first which devices there are. */
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"

static int grant(void)
{
	struct visit saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		code = tmsGrant();
		go_leave(&saved);
	}
	return code;
}

static bool segments_exist(void)
{
	return (atomic_load_explicit(&arena_count, memory_order_acquire) & ~ARENAS_TRACED) > 0 &&
	       go_now() == GO_AWAKE;
}

/* Devices that were chosen after there were segments: they have been told. */
static _Atomic uint64_t chosen;

static uint64_t bit_of(int device)
{
	return device >= 0 && device < 64 ? (uint64_t)1 << device : 0;
}

HIDDEN void access_forget(int device)
{
	atomic_fetch_and(&chosen, ~bit_of(device));
}

EXPORT int cudaSetDevice(int device)
{
	uint64_t bit = bit_of(device);
	if (likely(!segments_exist() || atomic_load_explicit(&chosen, memory_order_relaxed) & bit))
		return forward_cudaSetDevice(device);
	int code = forward_cudaSetDevice(device);
	if (code == SUCCESS && grant() == SUCCESS)
		atomic_fetch_or(&chosen, bit);
	return code;
}

EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
	int code = forward_cudaDeviceEnablePeerAccess(peer, flags);
	return code == SUCCESS && segments_exist() ? grant() : code;
}

EXPORT int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
	int code = forward_cuCtxEnablePeerAccess(context, flags);
	return code == SUCCESS && segments_exist() ? grant() : code;
}
