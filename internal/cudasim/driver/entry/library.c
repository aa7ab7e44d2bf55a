// Libraries of kernels, and launches. An image is PTX text, of which only the entries count that execution/kernel.c
// emulates. The driver loads lazily, so a bad image shows when a program asks for a kernel.
#include <string.h>

#include "entry/gate.h"

struct library {
	struct object object;
	bool valid;
	bool has[EMULATIONS];
	struct kernel *kernels[EMULATIONS]; // that were asked for
};

// Reports whether the text has ".entry name(", with spaces where PTX allows them.
static bool has_entry(const char *text, const char *name)
{
	const char *spaces = " \t\r\n";
	while ((text = strstr(text, ".entry"))) {
		text += strlen(".entry");
		const char *at = text + strspn(text, spaces);
		if (at == text || strncmp(at, name, strlen(name)))
			continue;
		at += strlen(name);
		if (at[strspn(at, spaces)] == '(')
			return true;
	}
	return false;
}

static CUresult load(CUlibrary *handle, const void *image, bool lacks_options)
{
	if (!handle || !image || lacks_options)
		return CUDA_ERROR_INVALID_VALUE;
	struct library *library = object_new(LIBRARY, sizeof *library);
	if (!library)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->valid = strstr(image, ".version") && strstr(image, ".target");
	for (int i = 0; i < EMULATIONS; i++)
		library->has[i] = has_entry(image, emulations[i].name);
	*handle = object_handle(library);
	return CUDA_SUCCESS;
}

static CUresult get_kernel(CUkernel *handle, CUlibrary library_handle, const char *name)
{
	struct library *library = object_find(library_handle, LIBRARY);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!handle || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!library->valid)
		return CUDA_ERROR_INVALID_IMAGE;
	for (int i = 0; i < EMULATIONS; i++) {
		if (!library->has[i] || strcmp(emulations[i].name, name))
			continue;
		struct kernel *kernel = library->kernels[i];
		if (!kernel) {
			kernel = object_new(KERNEL, sizeof *kernel);
			if (!kernel)
				return CUDA_ERROR_OUT_OF_MEMORY;
			kernel->emulation = &emulations[i];
			library->kernels[i] = kernel;
		}
		*handle = object_handle(kernel);
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

static CUresult get_function(CUfunction *handle, CUkernel kernel_handle)
{
	struct kernel *kernel = object_find(kernel_handle, KERNEL);
	struct context *context = current_context();
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	struct function *function;
	TRY(function_of(kernel, context, &function));
	*handle = object_handle(function);
	return CUDA_SUCCESS;
}

// The limits are those that cuDeviceGetAttribute names.
static bool is_valid(const CUlaunchConfig *shape)
{
	unsigned x = shape->blockDimX, y = shape->blockDimY, z = shape->blockDimZ;
	return shape->gridDimX && shape->gridDimY && shape->gridDimZ && shape->gridDimX <= 2147483647u &&
	       shape->gridDimY <= 65535 && shape->gridDimZ <= 65535 && x && y && z && x <= 1024 && y <= 1024 && z <= 64 &&
	       (uint64_t)x * y * z <= 1024;
}

static CUresult launch(const CUlaunchConfig *config, bool own, CUfunction handle, void **parameters, void **extra)
{
	struct stream *stream;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	if (config->numAttrs)
		return CUDA_ERROR_NOT_SUPPORTED; // the emulation knows none
	struct function *function = object_find(handle, FUNCTION);
	struct kernel *kernel = function ? function->kernel : object_find(handle, KERNEL);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!is_valid(config) || (!parameters && !extra))
		return CUDA_ERROR_INVALID_VALUE;
	const struct emulation *emulation = kernel->emulation;
	if (extra || config->sharedMemBytes || config->gridDimY != 1 || config->gridDimZ != 1 ||
	    config->blockDimX != emulation->block[0] || config->blockDimY != emulation->block[1] ||
	    config->blockDimZ != emulation->block[2])
		return CUDA_ERROR_NOT_SUPPORTED; // the emulation is written for one shape
	TRY(stream_resolve(MINE(config->hStream), &stream));
	if (function && function->context != stream->context) // a kernel belongs to every context
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(function_load(kernel, stream->context));
	struct operation operation = {.type = LAUNCH,
				      .launch = {.emulation = emulation, .grid = config->gridDimX}};
	for (size_t i = 0; i < emulation->count; i++)
		memcpy(operation.launch.parameters + emulation->parameters[i].offset, parameters[i],
		       emulation->parameters[i].size);
	return stream_submit(stream, &operation);
}

LIBRARY_FUNCTIONS(DEFINE, DEFINE_PTSZ)
