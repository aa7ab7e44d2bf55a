/* alloc has the functions that allocate: outside regions CUDA's own memory, in regions the engine's. The
 * watchers are told of each allocation (watch). mapping.c has memory that a program maps itself. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

struct allocation {
	void *address;
	size_t size;
	int device;
	struct region_settings *settings;
	struct repeat_request *ordered; /* for use in the order of a stream; or NULL */
};

static int allocate(void *allocation)
{
	struct allocation *of = allocation;
	void *context = NULL;
	struct visit saved;
	int code = gate_before_allocation();
	if (code == SUCCESS)
		code = go_enter(&saved);
	if (code == SUCCESS) {
		if (forward_cuCtxGetCurrent(&context) != SUCCESS)
			context = NULL; /* the engine gets the error again, with a text */
		code = tmsMalloc(&of->address, of->size, of->device, context, of->settings, of->ordered);
		go_leave(&saved);
	}
	return code;
}

static int pausable_malloc_as(void **pointer, struct allocation *of)
{
	int code = share_allocate(of->device, of->size, allocate, of);
	if (code == SUCCESS)
		*pointer = of->address;
	return code;
}

HIDDEN int pausable_malloc(void **pointer, size_t size, int device)
{
	struct region_settings settings = region_get();
	return pausable_malloc_as(pointer, &(struct allocation){NULL, size, device, &settings, NULL});
}

/* The device is that of the request. */
static int malloc_ordered(void **pointer, int device, struct repeat_request *request)
{
	if (unlikely(!atomic_load_explicit(&ordered_used, memory_order_relaxed)))
		atomic_store(&ordered_used, true);
	return pausable_malloc_as(pointer,
				  &(struct allocation){NULL, request->size, device, &request->settings, request});
}

HIDDEN int current_device(int *device)
{
	if (unlikely(go_now() == GO_DEAD))
		return go_start(); /* its text says more than CUDA's refusal after fork */
	int code = forward_cudaGetDevice(device);
	if (code == FORWARD_MISSING)
		return error_fail(code, "no libcudart is loaded; link the program with $(tms --libs) before "
					"-lcudart (a static libcudart cannot be reached); in Python, import torch or cupy first");
	if (code != SUCCESS)
		return error_fail(code, "cudaGetDevice failed with %d", code);
	return SUCCESS;
}

HIDDEN int current_device_of_driver(int *device)
{
	if (unlikely(go_now() == GO_DEAD))
		return go_start();
	int code = forward_cuCtxGetDevice(device);
	if (code == SUCCESS || forward_cudaGetDevice(device) == SUCCESS)
		return SUCCESS;
	return error_fail(code, "cuCtxGetDevice failed with %d", code);
}

static int pausable_malloc_here(void **pointer, size_t size)
{
	int device = 0;
	if (!pointer)
		return error_fail(ERROR_INVALID_VALUE, "the pointer to fill in is NULL");
	int code = current_device(&device);
	return code == SUCCESS ? pausable_malloc(pointer, size, device) : code;
}

/* For functions of the runtime. */
static int runtime_malloc(void **pointer, size_t size)
{
	return runtime_result(pausable_malloc_here(pointer, size));
}

/* An allocation function's body, which is plain outside regions and ours in them, and tells the watchers. before comes
 * before plain. The account counts bytes of a successful plain for the caller, or nothing if that is NULL. */
#define ALLOCATING(pointer, size, stream, in_region, plain, ours, before, caller_, bytes_)          \
	({                                                                                         \
		int made_;                                                                         \
		if (likely(!region_active() && !watch_is_on(WATCH_CALLS)) || call_is_below) {        \
			made_ = plain;                                                             \
		} else {                                                                           \
			bool taking_ = (in_region);                                                \
			if (taking_) {                                                             \
				made_ = ours;                                                      \
			} else {                                                                   \
				before;                                                            \
				made_ = BELOW(plain);                                              \
			}                                                                          \
			if (unlikely(watch_is_on(WATCH_CALLS))) {                                  \
				struct watch_allocation seen_ = {                                  \
					made_, NULL, size, stream, NULL, taking_, false, NULL, 0}; \
				if (made_ == SUCCESS)                                              \
					seen_.address = *(void **)(pointer);                       \
				if (made_ == SUCCESS && !taking_ && (seen_.caller = (caller_)))    \
					seen_.bytes = (bytes_);                                    \
				watch_allocated(&seen_);                                           \
			}                                                                          \
		}                                                                                  \
		made_;                                                                             \
	})

/* An allocation that has memory of its own. */
#define ALLOCATING_FOR(caller, pointer, size, bytes, plain, ours)                                  \
	ALLOCATING(pointer, size, NULL, TAKING_FOR(caller), plain, ours, (void)0, caller, bytes)
#define ALLOCATING_ONE(pointer, size, bytes, plain, ours)                                          \
	ALLOCATING_FOR(CALLER(), pointer, size, bytes, plain, ours)

/* A function of its own, so that a call that is passed on needs no frame. */
OUT_OF_LINE int watched_cudaMalloc(void **pointer, size_t size, const void *caller)
{
	return ALLOCATING_FOR(caller, pointer, size, size, forward_cudaMalloc(pointer, size),
			      runtime_malloc(pointer, size));
}

HOT EXPORT int cudaMalloc(void **pointer, size_t size)
{
	if (likely(!region_active() && !watch_is_on(WATCH_CALLS)))
		return forward_cudaMalloc(pointer, size);
	return watched_cudaMalloc(pointer, size, CALLER());
}

/* Rows start at multiples of this, as CUDA's do on every current device. */
enum { PITCH = 512 };

static bool pausable_pitch(size_t width, size_t height, size_t depth, size_t *pitch, size_t *size)
{
	size_t rows;
	return !__builtin_add_overflow(width, PITCH - 1, pitch) &&
	       (*pitch &= ~(size_t)(PITCH - 1), !__builtin_mul_overflow(height, depth, &rows)) &&
	       !__builtin_mul_overflow(*pitch, rows, size);
}

static int pausable_malloc_pitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	size_t row = 0, size = 0;
	if (!pitch)
		return error_fail(ERROR_INVALID_VALUE, "the pitch to fill in is NULL");
	if (!pausable_pitch(width, height, 1, &row, &size))
		return error_fail(ERROR_MEMORY_ALLOCATION, "%zu rows of %zu bytes are more than any memory", height,
				  width);
	int code = pausable_malloc_here(pointer, size);
	if (code == SUCCESS)
		*pitch = row;
	return code;
}

EXPORT int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	return ALLOCATING_ONE(pointer, width * height, *pitch * height,
			      forward_cudaMallocPitch(pointer, pitch, width, height),
			      runtime_result(pausable_malloc_pitch(pointer, pitch, width, height)));
}

static int pausable_malloc_3d(struct forward_pitched *pitched, struct forward_extent extent)
{
	size_t row = 0, size = 0;
	void *pointer = NULL;
	if (!pitched)
		return error_fail(ERROR_INVALID_VALUE, "the pitched pointer to fill in is NULL");
	if (!pausable_pitch(extent.width, extent.height, extent.depth, &row, &size))
		return error_fail(ERROR_MEMORY_ALLOCATION, "the extent is more than any memory");
	int code = pausable_malloc_here(&pointer, size);
	if (code == SUCCESS)
		*pitched = (struct forward_pitched){pointer, row, extent.width, extent.height};
	return code;
}

EXPORT int cudaMalloc3D(struct forward_pitched *pitched, struct forward_extent extent)
{
	size_t size = extent.width * extent.height * extent.depth;
	return ALLOCATING_ONE(&pitched->pointer, size, pitched->pitch * extent.height * extent.depth,
			      forward_cudaMalloc3D(pitched, extent),
			      runtime_result(pausable_malloc_3d(pitched, extent)));
}

static int driver_device(int *device)
{
	int code = forward_cuCtxGetDevice(device);
	return code == SUCCESS ? code : error_fail(code, "cuCtxGetDevice failed with %d", code);
}

static int pausable_driver_malloc(uintptr_t *pointer, size_t size)
{
	int device = 0;
	void *address = NULL;
	/* The driver, unlike the runtime, takes neither zero bytes nor a thread without a context. */
	if (!pointer || size == 0)
		return error_fail(ERROR_INVALID_VALUE, "a pointer to fill in and a size are needed");
	int code = driver_device(&device);
	if (code == SUCCESS)
		code = pausable_malloc(&address, size, device);
	if (code == SUCCESS)
		*pointer = (uintptr_t)address;
	return code;
}

EXPORT int cuMemAlloc_v2(uintptr_t *pointer, size_t size)
{
	return ALLOCATING_ONE(pointer, size, size, forward_cuMemAlloc_v2(pointer, size),
			      pausable_driver_malloc(pointer, size));
}

static int pausable_driver_pitch(uintptr_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	size_t row = 0, size = 0;
	if (!pitch || (element != 4 && element != 8 && element != 16) ||
	    !pausable_pitch(width, height, 1, &row, &size))
		return error_fail(ERROR_INVALID_VALUE, "cuMemAllocPitch takes elements of 4, 8 or 16 bytes and rows "
						       "that fit into memory");
	int code = pausable_driver_malloc(pointer, size);
	if (code == SUCCESS)
		*pitch = row;
	return code;
}

EXPORT int cuMemAllocPitch_v2(uintptr_t *pointer, size_t *pitch, size_t width, size_t height,
			      unsigned element)
{
	return ALLOCATING_ONE(pointer, width * height, *pitch * height,
			      forward_cuMemAllocPitch_v2(pointer, pitch, width, height, element),
			      pausable_driver_pitch(pointer, pitch, width, height, element));
}

/* Stream-ordered. During a capture the graph owns the stream's allocations, so they stay CUDA's. */
#define ORDERED(stream_id, is_capturing, pool, is_current, plain, ours)                            \
	({                                                                                         \
		int device_ = -1;                                                                  \
		ALLOCATING(pointer, size, stream_id,                                               \
			   TAKING() && !is_captured(is_capturing, stream) &&                       \
				   ordered_takes(pool, is_current, &device_),                      \
			   plain, ours(pointer, size, device_, stream_id),                         \
			   watch_pool_used(pool, CALLER()), NULL, 0);                               \
	})

/* The memory of a stream is its device's, whichever is current. */
OUT_OF_LINE int device_of(void *stream, int *device, int (*current)(int *))
{
	void *its = NULL, *own = NULL;
	if ((uintptr_t)stream <= (uintptr_t)PER_THREAD_STREAM || forward_cuStreamGetCtx(stream, &its) != SUCCESS ||
	    forward_cuCtxGetCurrent(&own) != SUCCESS || its == own)
		return current(device);
	return IN_GO(tmsDeviceOfContext(its, device)) == SUCCESS ? SUCCESS : current(device);
}

/* current: finds the device of a request that names none. */
static int repeat_or_malloc(void **pointer, size_t size, int device, void *stream, int (*current)(int *))
{
	struct repeat_request request = {size, stream, NULL, region_get(), device};
	void *repeated = repeat_malloc(&request);
	if (repeated) {
		*pointer = repeated;
		return SUCCESS;
	}
	int code = device < 0 ? device_of(stream, &device, current) : SUCCESS;
	return code == SUCCESS ? malloc_ordered(pointer, device, &request) : code;
}

static int ordered_malloc(void **pointer, size_t size, int device, void *stream)
{
	if (!pointer)
		return runtime_result(error_fail(ERROR_INVALID_VALUE, "the pointer to fill in is NULL"));
	return runtime_result(repeat_or_malloc(pointer, size, device, stream, current_device));
}

static int ordered_driver_malloc(uintptr_t *pointer, size_t size, int device, void *stream)
{
	void *address = NULL;
	if (!pointer || size == 0)
		return error_fail(ERROR_INVALID_VALUE, "a pointer to fill in and a size are needed");
	int code = repeat_or_malloc(&address, size, device, stream, driver_device);
	if (code == SUCCESS)
		*pointer = (uintptr_t)address;
	return code;
}

/* own: the stream that the suffix means. */
#define ALLOCATES_ORDERED(api, suffix, type, is_capturing, own, ours)                              \
	EXPORT int api##Async##suffix(type *pointer, size_t size, void *stream)                    \
	{                                                                                          \
		return ORDERED(own, forward_##is_capturing##suffix, NULL, true,                    \
			       forward_##api##Async##suffix(pointer, size, stream), ours);         \
	}                                                                                          \
	EXPORT int api##FromPoolAsync##suffix(type *pointer, size_t size, void *pool, void *stream) \
	{                                                                                          \
		return ORDERED(own, forward_##is_capturing##suffix, pool, false,                   \
			       forward_##api##FromPoolAsync##suffix(pointer, size, pool, stream), ours); \
	}
ALLOCATES_ORDERED(cudaMalloc, , void *, cudaStreamIsCapturing, stream, ordered_malloc)
ALLOCATES_ORDERED(cudaMalloc, _ptsz, void *, cudaStreamIsCapturing, own_stream(stream), ordered_malloc)
ALLOCATES_ORDERED(cuMemAlloc, , uintptr_t, cuStreamIsCapturing, stream, ordered_driver_malloc)
ALLOCATES_ORDERED(cuMemAlloc, _ptsz, uintptr_t, cuStreamIsCapturing, own_stream(stream), ordered_driver_malloc)
