// Kernels compiled into a program are not simulated. The program still loads: its compiler's code registers them here,
// and a launch is refused.
#include "runtime.h"

// These ignore their arguments.
EXPORT void **__cudaRegisterFatBinary(void)
{
	static void *handle;
	return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void)
{
}

EXPORT void __cudaUnregisterFatBinary(void)
{
}

EXPORT void __cudaRegisterFunction(void)
{
}

EXPORT void __cudaRegisterVar(void)
{
}

EXPORT cudaError_t cudaLaunchKernel(void)
{
	return result(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaLaunchKernel_ptsz(void)
{
	return result(cudaErrorNotSupported);
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
