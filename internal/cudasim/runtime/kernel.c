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

// Comes before a launch, which the program leaves out where this refuses.
EXPORT unsigned __cudaPushCallConfiguration(void)
{
	return result(cudaErrorNotSupported);
}

EXPORT cudaError_t __cudaPopCallConfiguration(void)
{
	return result(cudaErrorNotSupported);
}
