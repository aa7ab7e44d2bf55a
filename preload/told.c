/* told has what a program is told of a device's memory: under tms run --limit or --share, what it may have; otherwise
 * CUDA's own figures. A program sizes itself by these when it starts. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

static inline size_t least(size_t one, size_t other)
{
	return one < other ? one : other;
}

OUT_OF_LINE uint64_t has_of(int device)
{
	uint64_t has = 0;
	if (go_now() == GO_AWAKE)
		(void)IN_GO((has = tmsHas(device), SUCCESS));
	return has;
}

static void tell(size_t *available, size_t *total)
{
	int device = 0;
	if (forward_cuCtxGetDevice(&device) != SUCCESS)
		return;
	uint64_t has = has_of(device), limit = region_config.limit_bytes;
	if (region_config.share)
		*available = share_may_take(device, has, *available, *total);
	if (limit) {
		*available = least(*available, limit > has ? limit - has : 0);
		*total = least(*total, limit);
	}
}

/* To a program, what it has freed and its streams have reached is free. */
OUT_OF_LINE void settle(void)
{
	if (go_now() == GO_AWAKE)
		(void)IN_GO((tmsOrderedSettle(), SUCCESS));
}

#define TELLS_INFO(symbol)                                                                         \
	EXPORT int symbol(size_t *available, size_t *total)                                        \
	{                                                                                          \
		if (unlikely(atomic_load(&ordered_used)))                                          \
			settle();                                                                  \
		bool own = !region_config.limit_bytes && !region_config.share;                     \
		if (likely(own) || call_is_below || !available || !total)                          \
			return forward_##symbol(available, total);                                 \
		int code = BELOW(forward_##symbol(available, total));                              \
		if (code == SUCCESS)                                                               \
			tell(available, total);                                                    \
		return code;                                                                       \
	}
TELLS_INFO(cudaMemGetInfo)
TELLS_INFO(cuMemGetInfo_v2)

static int limited(int code, size_t *total)
{
	if (unlikely(region_config.limit_bytes) && code == SUCCESS)
		*total = least(*total, region_config.limit_bytes);
	return code;
}

EXPORT int cuDeviceTotalMem_v2(size_t *total, int device)
{
	return limited(forward_cuDeviceTotalMem_v2(total, device), total);
}

/* The beginning of cudaDeviceProp, in all versions from 10 on. */
struct properties {
	char name[256], uuid[16], luid[8];
	unsigned node_mask;
	size_t total;
};

#define TELLS_PROPERTIES(symbol)                                                                   \
	EXPORT int symbol(void *properties, int device)                                            \
	{                                                                                          \
		struct properties *of = properties;                                                \
		int code = forward_##symbol(properties, device);                                   \
		return code == SUCCESS ? limited(code, &of->total) : code;                         \
	}
TELLS_PROPERTIES(cudaGetDeviceProperties)
TELLS_PROPERTIES(cudaGetDeviceProperties_v2)
