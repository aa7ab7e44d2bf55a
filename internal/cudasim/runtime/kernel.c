// Kernels compiled into a program are not simulated. It can still be loaded: what its compiler
// generated registers them here, and a launch is refused.
#include "runtime.h"

EXPORT void **__cudaRegisterFatBinary(void *binary)
{
	static void *handle;
	(void)binary;
	return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
	(void)handle;
}

EXPORT void __cudaUnregisterFatBinary(void **handle)
{
	(void)handle;
}

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
				   void *thread, void *block, void *block_dim, void *grid_dim, int *size)
{
	(void)handle, (void)host, (void)device, (void)name, (void)limit;
	(void)thread, (void)block, (void)block_dim, (void)grid_dim, (void)size;
}

EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
			      size_t size, int constant, int global)
{
	(void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant,
		(void)global;
}

static _Thread_local struct {
	dim3 grid, block;
	size_t shared;
	cudaStream_t stream;
} configuration;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
	configuration.grid = grid;
	configuration.block = block;
	configuration.shared = shared;
	configuration.stream = stream;
	return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
	*grid = configuration.grid;
	*block = configuration.block;
	*shared = configuration.shared;
	*(cudaStream_t *)stream = configuration.stream;
	return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
				    size_t shared, cudaStream_t stream)
{
	(void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
	return result(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments,
					 size_t shared, cudaStream_t stream)
{
	return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
