// Driver functions by name.
#include "runtime.h"

enum { PER_THREAD = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
						    unsigned long long flags,
						    CUdriverProcAddressQueryResult *status)
{
	LOADED();
	return result(cu.cuGetProcAddress_v2(symbol, function, (int)version, flags, status));
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
							 unsigned version, unsigned long long flags,
							 CUdriverProcAddressQueryResult *status)
{
	return cudaGetDriverEntryPointByVersion(symbol, function, version, flags ? flags : PER_THREAD,
						status);
}

// The version meant is that of this library.
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
					   CUdriverProcAddressQueryResult *status)
{
	return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_MAJOR >= 13 ? 13000 : 12090, flags,
						status);
}

EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
						CUdriverProcAddressQueryResult *status)
{
	return cudaGetDriverEntryPoint(symbol, function, flags ? flags : PER_THREAD, status);
}
