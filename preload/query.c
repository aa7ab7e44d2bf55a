/* query has what programs ask CUDA about addresses. The driver knows only mappings: it knows nothing of memory that is
 * paused, and one mapping may hold several allocations. A program may ask at any time, so it gets the answer for active
 * memory, even while the memory is paused. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <stdio.h>
#include <string.h>

/* The part of cudaPointerAttributes that 12 and 13 have in common. */
struct attributes {
	int type;
	int device;
	void *device_pointer;
	void *host_pointer;
};

/* CUpointer_attribute. */
enum {
	CONTEXT = 1,
	MEMORY_TYPE,
	DEVICE_POINTER,
	HOST_POINTER,
	P2P_TOKENS,
	SYNC_MEMOPS,
	BUFFER_ID,
	IS_MANAGED,
	DEVICE_ORDINAL,
	IS_LEGACY_IPC_CAPABLE,
	RANGE_START,
	RANGE_SIZE,
	MAPPED,
	ALLOWED_HANDLE_TYPES,
	IS_GPU_DIRECT_RDMA_CAPABLE,
	ACCESS_FLAGS,
	MEMPOOL_HANDLE,
	MAPPING_SIZE,
	MAPPING_BASE,
	MEMORY_BLOCK_ID,
	IS_HW_DECOMPRESS_CAPABLE,
};
enum { MEMORY_TYPE_DEVICE = 2 };

static bool find_for(uintptr_t address, int device, struct memory_at *memory)
{
	int code = NOT_OURS;
	return may_be_ours(address) && IN_GO((code = tmsMemoryAt(address, device, memory), SUCCESS)) == SUCCESS &&
	       code == SUCCESS;
}

static bool find(uintptr_t address, struct memory_at *memory)
{
	int device = -1;
	(void)forward_cuCtxGetDevice(&device); /* without a context no device has access */
	return find_for(address, device, memory);
}

/* Reports whether the driver knows memory at an address: it answers some questions about addresses alone, too. */
static bool is_mapped(uintptr_t address)
{
	uint64_t pointer;
	return forward_cuPointerGetAttribute(&pointer, DEVICE_POINTER, address) == SUCCESS;
}

HIDDEN bool query_is_paused(uintptr_t address)
{
	struct memory_at memory;
	return may_be_ours(address) && !is_mapped(address) && find(address, &memory);
}

/* The context that memory of cudaMalloc would belong to. Mapped memory belongs to none to the driver. UCX takes such
 * memory, if it can have no handle of it, for managed memory. */
static uintptr_t context_of(const struct memory_at *memory)
{
	void *context = NULL;
	unsigned flags;
	int active = 0;
	if (!memory->own || forward_cuDevicePrimaryCtxGetState(memory->device, &flags, &active) != SUCCESS || !active ||
	    forward_cuDevicePrimaryCtxRetain(&context, memory->device) != SUCCESS)
		return 0;
	(void)forward_cuDevicePrimaryCtxRelease_v2(memory->device);
	return (uintptr_t)context;
}

/* Stores the driver's answer for mapped memory, and returns how many bytes the answer has, or 0 for an attribute that
 * such memory does not have. */
static size_t attribute_of(const struct memory_at *memory, int attribute, uintptr_t address, uint64_t *value)
{
	*value = 0;
	switch (attribute) {
	case MEMORY_TYPE: return *value = MEMORY_TYPE_DEVICE, sizeof(int);
	case DEVICE_POINTER: return *value = address, 8;
	case DEVICE_ORDINAL: return *value = (uint64_t)memory->device, sizeof(int);
	case RANGE_START: return *value = memory->base, 8;
	case RANGE_SIZE: return *value = memory->size, 8;
	case MAPPED: return *value = true, sizeof(int);
	case ALLOWED_HANDLE_TYPES: return *value = memory->handle_types, 8;
	case IS_GPU_DIRECT_RDMA_CAPABLE: return *value = memory->rdma, sizeof(int);
	case IS_LEGACY_IPC_CAPABLE: return *value = memory->ipc, sizeof(int);
	case ACCESS_FLAGS: return *value = memory->access, sizeof(int);
	case MAPPING_BASE: return *value = memory->mapping, 8;
	case MAPPING_SIZE: return *value = memory->mapping_size, 8;
	case BUFFER_ID:
	case MEMORY_BLOCK_ID: return *value = memory->id, 8;
	case CONTEXT: return *value = context_of(memory), 8;
	case MEMPOOL_HANDLE: return 8;
	case SYNC_MEMOPS:
	case IS_MANAGED:
	case IS_HW_DECOMPRESS_CAPABLE: return sizeof(int);
	default: return 0;
	}
}

static bool answer(const struct memory_at *memory, int attribute, uintptr_t address, void *data)
{
	uint64_t value;
	size_t size = data ? attribute_of(memory, attribute, address, &value) : 0;
	if (size)
		memcpy(data, &value, size);
	return size;
}

/* Reports whether the driver's answer for active memory in an arena would be wrong: it is one mapping to the driver,
 * and memory of cudaMalloc to the program. */
static bool by_us(int attribute)
{
	return attribute == RANGE_START || attribute == RANGE_SIZE || attribute == CONTEXT ||
	       attribute == IS_LEGACY_IPC_CAPABLE;
}

EXPORT int cudaPointerGetAttributes(void *attributes, const void *pointer)
{
	struct memory_at memory;
	struct attributes *at = attributes;
	int code = forward_cudaPointerGetAttributes(attributes, pointer);
	if (!at || likely(!may_be_ours((uintptr_t)pointer)) || (code == SUCCESS && at->type != 0) ||
	    !find((uintptr_t)pointer, &memory))
		return code;
	if (code != SUCCESS)
		forward_cudaGetLastError(); /* the program sees no failure */
	*at = (struct attributes){MEMORY_TYPE_DEVICE, memory.device, (void *)pointer, NULL};
	return SUCCESS;
}

/* Programs ask this before they share memory with another process. */
EXPORT int cuMemGetAddressRange_v2(uintptr_t *base, size_t *size, uintptr_t address)
{
	struct memory_at memory;
	bool ours = arena_contains((void *)address);
	int code = likely(!ours) ? forward_cuMemGetAddressRange_v2(base, size, address) : SUCCESS;
	if ((!ours && code == SUCCESS) || !find(address, &memory))
		return ours ? forward_cuMemGetAddressRange_v2(base, size, address) : code;
	if (base)
		*base = memory.base;
	if (size)
		*size = memory.size;
	return SUCCESS;
}

EXPORT int cuPointerGetAttribute(void *data, int attribute, uintptr_t address)
{
	struct memory_at memory;
	if (likely(!may_be_ours(address)))
		return forward_cuPointerGetAttribute(data, attribute, address);
	bool ours = by_us(attribute) && arena_contains((const void *)address);
	int code = ours ? SUCCESS : forward_cuPointerGetAttribute(data, attribute, address);
	bool is_known = !ours && code == SUCCESS && (attribute == DEVICE_POINTER || is_mapped(address));
	if (!is_known && find(address, &memory)) {
		if (answer(&memory, attribute, address, data))
			return SUCCESS;
		if (attribute == HOST_POINTER && data)
			*(void **)data = NULL; /* as the driver does where it refuses */
	}
	return ours ? forward_cuPointerGetAttribute(data, attribute, address) : code;
}

/* The driver's answer is 0, and success, where it knows nothing of an address. */
EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, uintptr_t address)
{
	struct memory_at memory;
	int code = forward_cuPointerGetAttributes(count, attributes, data, address);
	if (code != SUCCESS || likely(!may_be_ours(address)))
		return code;
	bool mapped = is_mapped(address), in_arena = arena_contains((const void *)address);
	if ((mapped && !in_arena) || !find(address, &memory))
		return code;
	for (unsigned i = 0; i < count; i++)
		if (!mapped || by_us(attributes[i]))
			(void)answer(&memory, attributes[i], address, data[i]);
	return code;
}

/* The driver refuses SYNC_MEMOPS for memory by handle. The flag of the context does more, for all memory, and UCX sets
 * that where it can. */
static int synchronize_operations(void)
{
	enum { CTX_SYNC_MEMOPS = 0x80 };
	unsigned flags = 0;
	int code = forward_cuCtxGetFlags(&flags);
	return code == SUCCESS ? forward_cuCtxSetFlags(flags | CTX_SYNC_MEMOPS) : code;
}

EXPORT int cuPointerSetAttribute(const void *value, int attribute, uintptr_t address)
{
	struct memory_at memory;
	int code = forward_cuPointerSetAttribute(value, attribute, address);
	if (likely(code == SUCCESS) || !may_be_ours(address) || !find(address, &memory))
		return code;
	/* The gate has held the call, but the next pause from outside may have come since. */
	if (copies_are_checked() && copies_exposed(address))
		return error_fail(ERROR_NOT_SUPPORTED, "the memory is paused: resume it before its attributes are set");
	if (code != ERROR_NOT_SUPPORTED || attribute != SYNC_MEMOPS || !value)
		return code;
	if (*(const unsigned *)value == 0)
		return SUCCESS; /* as it is */
	return synchronize_operations() == SUCCESS ? SUCCESS : code;
}

struct location {
	int type, id;
};
enum { LOCATION_DEVICE = 1 };

EXPORT int cuMemGetAccess(unsigned long long *flags, const void *location, uintptr_t address)
{
	struct memory_at memory;
	const struct location *of = location;
	int code = forward_cuMemGetAccess(flags, location, address);
	if (code == SUCCESS || !flags || !of || of->type != LOCATION_DEVICE || !find_for(address, of->id, &memory))
		return code;
	*flags = memory.access;
	return SUCCESS;
}

/* CUDA has refused the arguments of a call, and says no more than that. */
HIDDEN void query_explain_refused(const char *call)
{
	char tag[64] = "";
	int code = NOT_OURS;
	if (!copies_are_checked() || go_now() != GO_AWAKE || gate_is_closed() ||
	    IN_GO((code = tmsPausedTag(tag, sizeof tag), SUCCESS)) != SUCCESS || code != SUCCESS)
		return;
	(void)error_fail(ERROR_INVALID_VALUE,
			 "%s was refused (1) while tag \"%s\" is paused: resume memory before calls that name its addresses",
			 call, tag);
	copies_log_refused();
}

/* For libtms_reach.so. */
EXPORT void tms_refused(const char *call)
{
	query_explain_refused(call);
}
