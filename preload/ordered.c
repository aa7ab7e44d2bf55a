/* ordered has what stream-ordered allocation asks of CUDA's memory pools. Pausable memory takes the place of a pool
 * that is plain device memory: of a default one, and of one that the program makes so. Host memory, managed memory and
 * memory for other processes stay CUDA's. A pool that is replaced still exists in CUDA, where it keeps its settings. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

/* The beginning of CUmemPoolProps. */
struct props {
	int type, handle_types;
	int location_type, location;
	void *win32;
	size_t most;
	unsigned short usage;
};
enum { TYPE_PINNED = 1, LOCATION_DEVICE = 1 };

/* A table without a lock, which a fork could leave held. A slot is filled before its pool is written, and emptied when
 * the pool goes; no call uses a pool that another thread destroys. */
enum { POOLS_MAX = 256 };
static char changing;
static struct known {
	_Atomic(const void *) pool; /* NULL in a free slot, or &changing */
	int device;		    /* -1 for CUDA's own */
	_Atomic uint64_t threshold;
} pools[POOLS_MAX];
static _Atomic int slots; /* how many of them were ever used */
static _Atomic bool others; /* some pool is CUDA's own */

HIDDEN uint64_t ordered_keep[ORDERED_DEVICES];

static struct known *find(const void *pool)
{
	int count = atomic_load(&slots);
	for (int i = 0; i < count; i++)
		if (atomic_load(&pools[i].pool) == pool)
			return &pools[i];
	return NULL;
}

static struct known *note(const void *pool, int device)
{
	struct known *found = find(pool);
	for (int i = 0; i < POOLS_MAX && !found; i++) {
		const void *none = NULL;
		if (!atomic_compare_exchange_strong(&pools[i].pool, &none, &changing))
			continue;
		found = &pools[i];
		int count = atomic_load(&slots);
		while (count <= i && !atomic_compare_exchange_weak(&slots, &count, i + 1))
			;
	}
	if (!found)
		return NULL; /* it is CUDA's own then */
	found->device = device;
	atomic_store(&found->threshold, 0);
	atomic_store(&found->pool, pool);
	return found;
}

/* The largest threshold of the pools whose memory lies together in the engine. */
static void keep(int device)
{
	uint64_t most = 0;
	int count = atomic_load(&slots);
	for (int i = 0; i < count; i++) {
		uint64_t threshold = atomic_load(&pools[i].threshold);
		if (atomic_load(&pools[i].pool) && pools[i].device == device && threshold > most)
			most = threshold;
	}
	__atomic_store_n(&ordered_keep[device], most, __ATOMIC_RELAXED);
}

/* RMM asks for this on every device. It means something only to a device with an engine for it. */
enum { USAGE_DECOMPRESSION = 2, DECOMPRESSION_ALGORITHMS = 136 };

static bool is_plain(unsigned usage, int device)
{
	int algorithms = 0;
	if (usage != USAGE_DECOMPRESSION)
		return usage == 0;
	int code = forward_cuDeviceGetAttribute(&algorithms, DECOMPRESSION_ALGORITHMS, device);
	return code != SUCCESS || algorithms == 0; /* an older driver does not know the attribute */
}

static int created(int code, void *const *pool, const struct props *props)
{
	if (code != SUCCESS)
		return code;
	bool ours = props->type == TYPE_PINNED && props->handle_types == 0 && props->location_type == LOCATION_DEVICE &&
		    props->location < ORDERED_DEVICES && props->most == 0 &&
		    is_plain(props->usage, props->location);
	if (!ours)
		atomic_store(&others, true);
	(void)note(*pool, ours ? props->location : -1);
	return code;
}

static void destroyed(void *pool)
{
	struct known *found = find(pool);
	if (found)
		atomic_store(&found->pool, NULL);
	if (found && found->device >= 0)
		keep(found->device);
}

/* Returns NULL if the pool is CUDA's own. */
static struct known *ours(void *pool)
{
	struct known *found = find(pool);
	int devices = 0;
	if (!pool || found)
		return found && found->device >= 0 ? found : NULL;
	if (forward_cuDeviceGetCount(&devices) != SUCCESS)
		return NULL;
	for (int device = 0; device < devices && device < ORDERED_DEVICES; device++) {
		void *standard = NULL;
		if (forward_cuDeviceGetDefaultMemPool(&standard, device) == SUCCESS && standard == pool)
			return note(pool, device);
	}
	return NULL;
}

HIDDEN bool ordered_takes(void *pool, bool is_current, int *device)
{
	*device = -1;
	if (is_current && likely(!atomic_load_explicit(&others, memory_order_relaxed)))
		return true;
	int current = 0;
	if (is_current && (forward_cuCtxGetDevice(&current) != SUCCESS ||
			   forward_cuDeviceGetMemPool(&pool, current) != SUCCESS))
		return true; /* the allocation finds out why */
	struct known *found = ours(pool);
	if (found && !is_current)
		*device = found->device;
	return found != NULL;
}

#define CREATES(symbol)                                                                            \
	EXPORT int symbol(void **pool, const void *props)                                          \
	{                                                                                          \
		return created(forward_##symbol(pool, props), pool, props);                        \
	}
CREATES(cudaMemPoolCreate)
CREATES(cuMemPoolCreate)

#define DESTROYS(symbol)                                                                           \
	EXPORT int symbol(void *pool)                                                              \
	{                                                                                          \
		watch_pool_ends(pool);                                                           \
		destroyed(pool);                                                                   \
		return forward_##symbol(pool);                                                     \
	}
DESTROYS(cudaMemPoolDestroy)
DESTROYS(cuMemPoolDestroy)

enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

/* The runtime asks the driver, which may lead back to these: the outer call alone adds what is pausable. */
static struct known *asked(int code, void *pool)
{
	return code == SUCCESS && !call_is_below ? ours(pool) : NULL;
}

static int set(int code, void *pool, int attribute, const uint64_t *value)
{
	struct known *found = attribute >= THRESHOLD ? asked(code, pool) : NULL;
	if (found && attribute == THRESHOLD) {
		atomic_store(&found->threshold, *value);
		keep(found->device);
		if (go_now() == GO_AWAKE)
			(void)IN_GO((tmsOrderedSettle(), SUCCESS)); /* the next allocation tells the engine */
	} else if (found && go_now() == GO_AWAKE) {
		(void)IN_GO((tmsOrderedResetHigh(found->device, attribute == USED_HIGH), SUCCESS));
	}
	return code;
}

/* Adds CUDA's own bytes in the pool, which graphs may use, and the pausable bytes. */
static int get(int code, void *pool, int attribute, uint64_t *value)
{
	uint64_t bytes[4] = {0};
	struct known *found = attribute >= RESERVED && attribute <= USED_HIGH ? asked(code, pool) : NULL;
	if (found && go_now() == GO_AWAKE) {
		(void)IN_GO((tmsOrderedBytes(found->device, bytes), SUCCESS));
		*value += bytes[attribute - RESERVED];
	}
	return code;
}

static int trim(int code, void *pool, size_t least)
{
	struct known *found = go_now() == GO_AWAKE ? asked(code, pool) : NULL;
	if (found)
		(void)IN_GO((tmsOrderedTrim(found->device, least), SUCCESS));
	return code;
}

#define POOLS(api)                                                                                 \
	EXPORT int api##MemPoolSetAttribute(void *pool, int attribute, void *value)                \
	{                                                                                          \
		return set(BELOW(forward_##api##MemPoolSetAttribute(pool, attribute, value)), pool, attribute, value); \
	}                                                                                          \
	EXPORT int api##MemPoolGetAttribute(void *pool, int attribute, void *value)                \
	{                                                                                          \
		return get(BELOW(forward_##api##MemPoolGetAttribute(pool, attribute, value)), pool, attribute, value); \
	}                                                                                          \
	EXPORT int api##MemPoolTrimTo(void *pool, size_t least)                                    \
	{                                                                                          \
		return trim(BELOW(forward_##api##MemPoolTrimTo(pool, least)), pool, least);        \
	}
POOLS(cuda)
POOLS(cu)

HIDDEN _Atomic bool ordered_used;

