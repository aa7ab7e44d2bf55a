// Driver functions by name.
#include "runtime.h"

enum { PER_THREAD = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };

#define FINDS(name, parameters, version) \
	PASS(driver_load, name, parameters, cu.cuGetProcAddress_v2(symbol, function, version, flags, status)) \
	PASS_AFTER(flags = flags ? flags : PER_THREAD, driver_load, name##_ptsz, parameters, \
		   cu.cuGetProcAddress_v2(symbol, function, version, flags, status))
FINDS(cudaGetDriverEntryPointByVersion,
      (const char *symbol, void **function, unsigned version, unsigned long long flags,
       CUdriverProcAddressQueryResult *status), (int)version)
// Finds the function of this library's version.
FINDS(cudaGetDriverEntryPoint,
      (const char *symbol, void **function, unsigned long long flags, CUdriverProcAddressQueryResult *status),
      RUNTIME_VERSION)
