/* mapping has the functions for memory that a program makes and maps itself (PyTorch's expandable segments). In a
 * region the engine makes it, under handles of its own, and pauses it like any other; the driver makes the rest.
 * token.c shares it with other processes. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <stdlib.h>
#include <string.h>

/* The beginning of CUmemAllocationProp. */
struct prop {
	int type, handle_types;
	int location_type, location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
enum { TYPE_PINNED = 1, LOCATION_DEVICE = 1 };

/* Memory with a usage is for sparse arrays, which are not mapped at addresses. */
static bool can_be_paused(const struct prop *prop)
{
	return prop && prop->type == TYPE_PINNED && prop->location_type == LOCATION_DEVICE && prop->usage == 0;
}

/* For libtms_reach.so, which notes what is registered with NCCL. If the program maps pausable memory itself, any
 * address may be pausable. */
EXPORT bool tms_is_pausable(uintptr_t address)
{
	return arena_contains((const void *)address) || atomic_load(&handles_tracked);
}

static _Atomic bool maps_memory;

EXPORT bool tms_maps_memory(void)
{
	return atomic_load(&maps_memory);
}

struct creation {
	uint64_t number;
	size_t size;
	const struct prop *prop;
	struct region_settings settings;
};

static int create_once(void *creation)
{
	struct creation *of = creation;
	int code = gate_before_allocation();
	if (code == SUCCESS)
		code = IN_GO(tmsMemCreate(&of->number, of->size, (void *)of->prop, of->prop->location, &of->settings));
	return code;
}

static int create(uint64_t *handle, size_t size, const struct prop *prop)
{
	const struct prop wanted = *prop;
	struct creation of = {0, size, &wanted, region_get()};
	int code = share_allocate(wanted.location, size, create_once, &of);
	if (code == SUCCESS) {
		handles_track();
		*handle = of.number;
	}
	return code;
}

static int device_of(const struct prop *prop)
{
	return prop && prop->location_type == LOCATION_DEVICE ? prop->location : -1;
}

EXPORT int cuMemCreate(uint64_t *handle, size_t size, const void *prop, unsigned long long flags)
{
	const void *caller = __builtin_return_address(0);
	if (unlikely(!atomic_load(&maps_memory)))
		atomic_store(&maps_memory, true);
	if (unlikely(region_active()) && TAKING_FOR(caller) && handle && !flags && can_be_paused(prop))
		return create(handle, size, prop);
	int code = forward_cuMemCreate(handle, size, prop, flags), device = device_of(prop);
	if (code != SUCCESS)
		return code;
	handles_created(*handle, size, device, call_is_below ? NULL : caller, ((const struct prop *)prop)->handle_types);
	return code;
}

/* Returns the engine's answer, or the driver's for memory of no region.
 *
 * Memory that the program points to is read and written outside Go: it may lie behind a barrier of the program, which
 * is a page that the program's own handler opens at the first fault. */
#define TRACKED_OR(ours, plain, counted) TRACKED_OR_BY(IN_GO(ours), plain, counted)
#define TRACKED_BY(ours, plain) TRACKED_OR_BY(ours, plain, plain)
#define TRACKED_OR_BY(ours, plain, counted)                                                          \
	({                                                                                         \
		int answer_ = NOT_OURS;                                                            \
		if (unlikely(atomic_load_explicit(&handles_tracked, memory_order_acquire))) {      \
			answer_ = MUST_BE_ACTIVE(ours);                                            \
			recording_changed();                                                       \
		}                                                                                  \
		answer_ != NOT_OURS ? answer_ : unlikely(watch_is_on(WATCH_HANDLES)) ? (counted) : (plain); \
	})
#define TRACKED(ours, plain) TRACKED_OR(ours, plain, plain)

#define TRACKS(symbol, parameters, arguments, ours, counted)                                       \
	EXPORT int symbol parameters                                                               \
	{                                                                                          \
		return TRACKED_OR(ours, forward_##symbol arguments, counted arguments);            \
	}
TRACKS(cuMemRelease, (uint64_t handle), (handle), tmsMemRelease(handle), handles_release)
TRACKS(cuMemMap, (uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags),
       (address, size, offset, handle, flags), tmsMemMap(address, size, offset, handle, flags), handles_map)
TRACKS(cuMemUnmap, (uintptr_t address, size_t size), (address, size), tmsMemUnmap(address, size), handles_unmap)

struct access { /* CUmemAccessDesc */
	int location_type, location, flags;
};

static int set_access(uintptr_t address, size_t size, const struct access *access, size_t count)
{
	struct access few[8], *copy = count <= sizeof few / sizeof *few ? few : calloc(count, sizeof *copy);
	if (!copy)
		return error_fail(ERROR_MEMORY_ALLOCATION, "no host memory for %zu descriptions of access", count);
	if (access)
		memcpy(copy, access, count * sizeof *copy);
	int code = IN_GO(tmsMemSetAccess(address, size, access ? copy : NULL, count));
	if (copy != few)
		free(copy);
	return code;
}

EXPORT int cuMemSetAccess(uintptr_t address, size_t size, const void *access, size_t count)
{
	return TRACKED_BY(set_access(address, size, access, count), forward_cuMemSetAccess(address, size, access, count));
}

TRACKS(cuMemAddressFree, (uintptr_t address, size_t size), (address, size), tmsMemAddressFree(address, size),
       forward_cuMemAddressFree)

static int retain(uint64_t *handle, uintptr_t address)
{
	uint64_t retained = 0;
	int code = handle ? IN_GO(tmsMemRetain(&retained, address)) : ERROR_INVALID_VALUE;
	if (code == SUCCESS)
		*handle = retained;
	return code;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *handle, void *address)
{
	/* NCCL 2.28.9 keeps a handle that it then cannot export, and the memory would stay after a pause. */
	if (unlikely(arena_contains(address)) && !region_config.exportable)
		return error_fail(ERROR_NOT_SUPPORTED,
				  "the program can have a handle of pausable memory under TMS_SHAREABLE=1 only: set "
				  "that, share the memory by cudaIpcGetMemHandle, or allocate it outside regions");
	return TRACKED_OR_BY(retain(handle, (uintptr_t)address), forward_cuMemRetainAllocationHandle(handle, address),
			     handles_retain(handle, address));
}

HIDDEN int mapping_use(struct mapping_use *use, uint64_t handle)
{
	if (use->type == 0)
		return forward_cuMemGetAllocationPropertiesFromHandle(use->out, handle);
	return forward_cuMemExportToShareableHandle(use->out, handle, use->type, use->flags);
}

/* Notes memory of a region that the driver has exported. */
static int exported(int code, uint64_t handle, uintptr_t address, size_t size)
{
	if (code == SUCCESS && go_now() == GO_AWAKE)
		(void)IN_GO((tmsMemExported(handle, address, size), SUCCESS));
	return code;
}

static int handle_of_range(void *to, uintptr_t address, size_t size, int type, unsigned long long flags)
{
	int code = forward_cuMemGetHandleForAddressRange(to, address, size, type, flags);
	if (code == SUCCESS || !query_is_paused(address))
		return code;
	error_set("the memory is paused, so it cannot have a handle: resume it first");
	return MEMORY_IS_PAUSED;
}

EXPORT int cuMemGetHandleForAddressRange(void *to, uintptr_t address, size_t size, int type, unsigned long long flags)
{
	int code = MUST_BE_ACTIVE(handle_of_range(to, address, size, type, flags));
	return exported(obstacle_note(__func__, code), 0, address, size);
}

OUT_OF_LINE int export_by_driver(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
	struct mapping_use use = {shareable, type, flags};
	return TRACKED(type ? obstacle_note("cuMemExportToShareableHandle", tmsMemUse(handle, true, &use)) : NOT_OURS,
		       exported(handles_export(shareable, handle, type, flags), handle, 0, 0));
}

EXPORT int cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
	int code = token_export(shareable, handle, type, flags);
	return code != NOT_OURS ? code : export_by_driver(shareable, handle, type, flags);
}

static int properties(void *prop, uint64_t handle)
{
	struct prop found;
	struct mapping_use use = {.out = &found};
	int code = IN_GO(tmsMemUse(handle, false, &use));
	if (code == SUCCESS)
		*(struct prop *)prop = found;
	return code;
}

EXPORT int cuMemGetAllocationPropertiesFromHandle(void *prop, uint64_t handle)
{
	return TRACKED_BY(prop ? properties(prop, handle) : NOT_OURS,
			  forward_cuMemGetAllocationPropertiesFromHandle(prop, handle));
}

/* A pause leaves memory alone that a multicast object writes to, because it cannot be replaced. The driver waits in
 * bind for other processes. */
#define BINDING(bind)                                                                              \
	({                                                                                         \
		uint64_t theirs = memory;                                                          \
		int code_ = NOT_OURS;                                                              \
		if (unlikely(atomic_load_explicit(&handles_tracked, memory_order_acquire)))        \
			code_ = MUST_BE_ACTIVE(IN_GO(tmsMemPin(&theirs)));                        \
		bool pinned_ = code_ == SUCCESS;                                                     \
		if (pinned_ || code_ == NOT_OURS)                                                    \
			code_ = (bind);                                                            \
		if (pinned_)                                                                         \
			(void)IN_GO((tmsMemBound(memory, code_ == SUCCESS), SUCCESS));             \
		code_;                                                                             \
	})

/* NCCL binds the buffers of a captured graph, and goes on without that where it is refused. */
static int refuse_binding(void)
{
	return error_fail(ERROR_NOT_SUPPORTED,
			  "memory that cudaMalloc gave in a region cannot be bound to a multicast object, which would go on "
			  "to write where it was before a pause: allocate it outside regions");
}

/* Returns the handle of the pausable memory at an address, which the caller releases, or 0 if there is none. */
static uint64_t mapped_at(uintptr_t address)
{
	uint64_t handle = 0;
	if (likely(!atomic_load_explicit(&handles_tracked, memory_order_acquire)) ||
	    IN_GO(tmsMemRetain(&handle, address)) != SUCCESS)
		return 0;
	return handle;
}

static int unretained(uint64_t handle, int code)
{
	if (handle)
		(void)IN_GO(tmsMemRelease(handle));
	return code;
}

#define BINDS_ADDRESS(symbol, parameters, arguments)                                               \
	EXPORT int symbol parameters                                                               \
	{                                                                                          \
		if (unlikely(arena_contains((const void *)address)))                               \
			return refuse_binding();                                                   \
		const uint64_t memory = mapped_at(address);                                        \
		return unretained(memory, BINDING(((void)theirs, forward_##symbol arguments)));    \
	}
BINDS_ADDRESS(cuMulticastBindAddr,
	      (uint64_t object, size_t offset, uintptr_t address, size_t size, unsigned long long flags),
	      (object, offset, address, size, flags))
BINDS_ADDRESS(cuMulticastBindAddr_v2,
	      (uint64_t object, int device, size_t offset, uintptr_t address, size_t size, unsigned long long flags),
	      (object, device, offset, address, size, flags))

EXPORT int cuMulticastBindMem(uint64_t object, size_t offset, uint64_t memory, size_t memory_offset, size_t size,
			      unsigned long long flags)
{
	return BINDING(forward_cuMulticastBindMem(object, offset, theirs, memory_offset, size, flags));
}

EXPORT int cuMulticastBindMem_v2(uint64_t object, int device, size_t offset, uint64_t memory, size_t memory_offset,
				 size_t size, unsigned long long flags)
{
	return BINDING(forward_cuMulticastBindMem_v2(object, device, offset, theirs, memory_offset, size, flags));
}
