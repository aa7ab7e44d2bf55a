/* query has what programs ask CUDA about addresses: the attributes of our memory and where it begins, even while it is
 * paused. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

/* The part of cudaPointerAttributes that 12 and 13 have in common. */
struct attributes {
	int type;
	int device;
	void *device_pointer;
	void *host_pointer;
};
enum { MEMORY_TYPE_DEVICE = 2 };

/* CUDA knows active mappings of the program's own too, and nothing of paused ones. */
static bool is_paused_mapping(int code, const struct attributes *attributes)
{
	return unlikely(atomic_load(&handles_tracked)) && (code != SUCCESS || attributes->type == 0);
}

/* An active segment is device memory to CUDA too. A paused one is nothing to it: no memory is
 * mapped there; but the address is still the allocation's, and on the same device. */
EXPORT int cudaPointerGetAttributes(void *attributes, const void *pointer)
{
	int code = forward_cudaPointerGetAttributes(attributes, pointer);
	if (!attributes || (likely(!arena_contains(pointer)) && !is_paused_mapping(code, attributes)))
		return code;
	int device = -1;
	(void)IN_GO((device = tmsDeviceOf((void *)pointer), SUCCESS));
	if (device < 0)
		return code;
	*(struct attributes *)attributes =
		(struct attributes){MEMORY_TYPE_DEVICE, device, (void *)pointer, NULL};
	return SUCCESS;
}

/* Where the allocation begins, as for memory of cudaMalloc: the driver knows only mappings, which may hold several.
 * Programs ask this before they share memory with another process. false: there is none. */
static bool range_of(uintptr_t address, uintptr_t *base, size_t *size)
{
	*base = 0;
	if (unlikely(arena_contains((void *)address)))
		(void)IN_GO((tmsRangeOf(address, base, size), SUCCESS));
	return *base != 0;
}

EXPORT int cuMemGetAddressRange_v2(uintptr_t *base, size_t *size, uintptr_t address)
{
	uintptr_t begins;
	size_t bytes;
	if (likely(!range_of(address, &begins, &bytes)))
		return forward_cuMemGetAddressRange_v2(base, size, address);
	if (base)
		*base = begins;
	if (size)
		*size = bytes;
	return SUCCESS;
}

enum { ATTRIBUTE_RANGE_START = 11, ATTRIBUTE_RANGE_SIZE = 12 };

static bool of_range(int attribute)
{
	return attribute == ATTRIBUTE_RANGE_START || attribute == ATTRIBUTE_RANGE_SIZE;
}

EXPORT int cuPointerGetAttribute(void *data, int attribute, uintptr_t address)
{
	uintptr_t begins;
	size_t bytes;
	if (likely(!of_range(attribute)) || !data || !range_of(address, &begins, &bytes))
		return forward_cuPointerGetAttribute(data, attribute, address);
	*(uint64_t *)data = attribute == ATTRIBUTE_RANGE_START ? begins : bytes;
	return SUCCESS;
}

EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, uintptr_t address)
{
	int code = forward_cuPointerGetAttributes(count, attributes, data, address);
	uintptr_t begins;
	size_t bytes;
	if (code == SUCCESS && unlikely(arena_contains((void *)address)) && range_of(address, &begins, &bytes))
		for (unsigned i = 0; i < count; i++)
			if (of_range(attributes[i]))
				*(uint64_t *)data[i] = attributes[i] == ATTRIBUTE_RANGE_START ? begins : bytes;
	return code;
}
