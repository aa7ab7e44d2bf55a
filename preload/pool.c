/* pool has the functions of sub-allocators for C programs and PyTorch: tms_pool_*, tms_torch_*. The pools themselves
 * are in Go (pools.go). */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"
#include "tms.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes a call with its device current, and restores the thread's own. */
#define ON_DEVICE(device, call)                                                                    \
	({                                                                                         \
		int own_ = (device), called_ = forward_cudaGetDevice(&own_);                       \
		if (called_ == SUCCESS && own_ != (device))                                        \
			called_ = forward_cudaSetDevice(device);                                   \
		if (called_ == SUCCESS)                                                            \
			called_ = call;                                                            \
		if (own_ != (device))                                                              \
			forward_cudaSetDevice(own_);                                               \
		called_;                                                                           \
	})

HIDDEN int pool_cuda_malloc(void **pointer, size_t size, int device)
{
	int code = ON_DEVICE(device, BELOW(forward_cudaMalloc(pointer, size)));
	if (code != SUCCESS)
		forward_cudaGetLastError(); /* the pool reports the error itself */
	return code;
}

HIDDEN int pool_cuda_free(uintptr_t pointer, int device)
{
	return ON_DEVICE(device, forward_cudaFree((void *)pointer));
}

HIDDEN bool pool_is_captured(uintptr_t stream)
{
	int status = 0;
	return forward_cudaStreamIsCapturing((void *)stream, &status) == SUCCESS && status != 0;
}

EXPORT int tms_pool_create(tms_pool **pool, const char *kind, const char *options, int device)
{
	struct region_settings settings = region_get();
	uintptr_t handle = 0;
	int code = SUCCESS;
	if (!pool || !kind)
		return error_fail(ERROR_INVALID_VALUE, "a pool to fill in and a kind are needed");
	if (checkpoint_asked() && go_now() == GO_AWAKE)
		return checkpoint_refuse();
	if (device < 0)
		code = current_device(&device);
	if (code != SUCCESS)
		return code;
	code = IN_GO(tmsPoolCreate(&handle, (char *)kind, (char *)(options ? options : ""), device, &settings));
	if (code == SUCCESS)
		*pool = (tms_pool *)handle;
	return code;
}

EXPORT int tms_pool_malloc(tms_pool *pool, void **address, size_t size, void *stream)
{
	uintptr_t made = 0;
	if (!address)
		return error_fail(ERROR_INVALID_VALUE, "the address to fill in is NULL");
	int code = gate_before_allocation(); /* even where the pool has free memory: a pause may have to take it first */
	if (code == SUCCESS)
		code = IN_GO(tmsPoolMalloc((uintptr_t)pool, &made, size, (uintptr_t)stream));
	watch_allocated(&(struct watch_allocation){code, (void *)made, size, stream, pool, .is_block = true});
	if (code == SUCCESS)
		*address = (void *)made;
	return code;
}

EXPORT int tms_pool_free(tms_pool *pool, void *address)
{
	struct watch_free noted = watch_freeing(address, WATCH_SAME_STREAM);
	int code = IN_GO(tmsPoolFree((uintptr_t)pool, (uintptr_t)address));
	watch_freed(code, &noted);
	return code;
}

EXPORT int tms_pool_record_stream(tms_pool *pool, void *address, void *stream)
{
	return IN_GO(tmsPoolRecordStream((uintptr_t)pool, (uintptr_t)address, (uintptr_t)stream));
}

EXPORT int tms_pool_trim(tms_pool *pool, size_t *released)
{
	size_t bytes = 0;
	int code = IN_GO(tmsPoolTrim((uintptr_t)pool, &bytes));
	if (released)
		*released = bytes;
	return code;
}

EXPORT int tms_pool_destroy(tms_pool *pool)
{
	int code = IN_GO(tmsPoolDestroy((uintptr_t)pool));
	if (code == SUCCESS)
		watch_own_pool_ended(pool);
	return code;
}

/* Writes a text that Go returns malloc'ed, and frees it. Its value is the text's length, or 0 without a text. */
#define GIVE(of, buffer, capacity)                                                                 \
	({                                                                                         \
		char *text_ = NULL;                                                                \
		(void)IN_GO((text_ = (of), SUCCESS));                                              \
		int length_ = text_ ? snprintf(buffer, (buffer) ? (capacity) : 0, "%s", text_) : 0; \
		free(text_);                                                                       \
		(size_t)length_;                                                                   \
	})

EXPORT size_t tms_pool_stats_json(tms_pool *pool, char *buffer, size_t capacity)
{
	return GIVE(tmsPoolStats((uintptr_t)pool), buffer, capacity);
}

EXPORT size_t tms_pool_snapshot_json(tms_pool *pool, char *buffer, size_t capacity)
{
	return GIVE(tmsPoolSnapshot((uintptr_t)pool), buffer, capacity);
}

EXPORT int tms_pool_reset_peak_stats(tms_pool *pool)
{
	return IN_GO(tmsPoolResetPeakStats((uintptr_t)pool));
}

EXPORT void *tms_torch_malloc(ssize_t size, int device, void *stream)
{
	void *pointer = NULL; /* mapped for the whole device when the call returns, whatever the stream */
	if (size < 0) {
		error_fail(ERROR_INVALID_VALUE, "PyTorch asked for %zd bytes", size);
		return NULL;
	}
	int code = pausable_malloc(&pointer, (size_t)size, device);
	watch_allocated(&(struct watch_allocation){code, pointer, (size_t)size, stream, .is_pausable = true});
	return code == SUCCESS ? pointer : NULL;
}

EXPORT void tms_torch_free(void *address, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	struct watch_free noted = watch_freeing(address, stream);
	int code = SUCCESS;
	if (arena_contains(address))
		code = pausable_free(address);
	else if (address)
		code = forward_cudaFree(address);
	watch_freed(code, &noted);
}

typedef void torch_fail(const char *function, const char *file, uint32_t line, const char *message);

/* Reports whether PyTorch is in the process. *fail becomes its c10::detail::torchCheckFail, which raises a c10::Error
 * and has a C signature, or NULL if this PyTorch has none. */
static bool find_torch(torch_fail **fail)
{
	void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
	*fail = library ? (torch_fail *)dlsym(library, "_ZN3c106detail14torchCheckFailEPKcS2_jS2_") : NULL;
	if (library)
		dlclose(library); /* it was there before, and stays */
	return library;
}

EXPORT int tms_torch_pool_use(const char *kind, const char *options)
{
	torch_fail *fail;
	if (!kind)
		return error_fail(ERROR_INVALID_VALUE, "the kind of pool is NULL");
	if (find_torch(&fail) && !fail)
		return error_fail(ERROR_NOT_SUPPORTED,
				  "this PyTorch's libc10.so lacks c10::detail::torchCheckFail, which raises its errors, so it "
				  "would use address 0 after an allocation that failed");
	return IN_GO(tmsTorchPoolUse((char *)kind, (char *)(options ? options : "")));
}

static int torch_pool_malloc(void **address, ssize_t size, int device, void *stream)
{
	struct region_settings settings = region_get();
	uintptr_t made = 0;
	if (size < 0)
		return error_fail(ERROR_INVALID_VALUE, "PyTorch asked for %zd bytes", size);
	int code = IN_GO(tmsTorchPoolMalloc(&made, (size_t)size, device, (uintptr_t)stream, &settings));
	watch_allocated(&(struct watch_allocation){code, (void *)made, (size_t)size, stream, .is_block = true});
	*address = (void *)made;
	return code;
}

EXPORT void *tms_torch_pool_malloc(ssize_t size, int device, void *stream)
{
	void *address = NULL;
	return torch_pool_malloc(&address, size, device, stream) == SUCCESS ? address : NULL;
}

/* Raises PyTorch's error; returns only without PyTorch. */
static void throw_to_torch(int code)
{
	torch_fail *fail;
	if (code == ERROR_MEMORY_ALLOCATION && !strstr(tms_last_error(), "CUDA out of memory"))
		error_prefix("CUDA out of memory. ");
	if (find_torch(&fail) && fail)
		fail("tms_torch_pool_malloc", "libtms.so", 0, tms_last_error());
	error_log(tms_last_error());
}

EXPORT void *tms_torch_pool_malloc_or_throw(ssize_t size, int device, void *stream)
{
	void *address = NULL;
	int code = torch_pool_malloc(&address, size, device, stream);
	if (code == SUCCESS)
		return address;
	throw_to_torch(code);
	return NULL;
}

EXPORT void tms_torch_pool_free(void *address, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	if (!address)
		return;
	struct watch_free noted = watch_freeing(address, stream);
	int code = IN_GO(tmsTorchPoolFree((uintptr_t)address));
	watch_freed(code, &noted);
	error_log_failure(__func__, code);
}

/* Starts Go now, so that the first allocation need not wait for it. */
EXPORT void tms_torch_pool_init(int devices)
{
	(void)devices;
	error_log_failure(__func__, go_start());
}

EXPORT void tms_torch_pool_record_stream(void *address, void *stream)
{
	if (address)
		error_log_failure(__func__, IN_GO(tmsTorchPoolRecordStream((uintptr_t)address, (uintptr_t)stream)));
}

EXPORT void tms_torch_pool_begin_allocate_to_pool(int device, struct tms_torch_pool_id id, void *filter)
{
	(void)filter;
	error_log_failure(__func__, IN_GO(tmsTorchPoolBegin(device, id.first, id.second)));
}

#define LOGS_FAILURE(name, parameters, call)                                                       \
	EXPORT void name parameters                                                                \
	{                                                                                          \
		error_log_failure(__func__, IN_GO(call));                                          \
	}
LOGS_FAILURE(tms_torch_pool_reset, (void), tmsTorchPoolReset())
LOGS_FAILURE(tms_torch_pool_memory_fraction, (double fraction, int device),
	     tmsTorchPoolMemoryFraction(fraction, device))
LOGS_FAILURE(tms_torch_pool_end_allocate_to_pool, (int device, struct tms_torch_pool_id id),
	     tmsTorchPoolEnd(device, id.first, id.second))
LOGS_FAILURE(tms_torch_pool_release_pool, (int device, struct tms_torch_pool_id id),
	     tmsTorchPoolRelease(device, id.first, id.second))

EXPORT size_t tms_torch_pool_stats_json(char *buffer, size_t capacity)
{
	return GIVE(tmsTorchPoolStats(), buffer, capacity);
}

EXPORT size_t tms_torch_pool_snapshot_json(char *buffer, size_t capacity)
{
	return GIVE(tmsTorchPoolSnapshot(), buffer, capacity);
}

EXPORT int tms_torch_pool_reset_peak_stats(void)
{
	return IN_GO(tmsTorchPoolResetPeakStats());
}
