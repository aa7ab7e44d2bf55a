// Driver functions by name.
#include "runtime.h"

enum { PER_THREAD = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };

PASS(driver_load, cudaGetDriverEntryPointByVersion,
     (const char *symbol, void **function, unsigned version, unsigned long long flags,
      CUdriverProcAddressQueryResult *status),
     cu.cuGetProcAddress_v2(symbol, function, (int)version, flags, status))
PASS(driver_load, cudaGetDriverEntryPointByVersion_ptsz,
     (const char *symbol, void **function, unsigned version, unsigned long long flags,
      CUdriverProcAddressQueryResult *status),
     cu.cuGetProcAddress_v2(symbol, function, (int)version, flags ? flags : PER_THREAD, status))
// Finds the function of this library's version.
PASS(driver_load, cudaGetDriverEntryPoint,
     (const char *symbol, void **function, unsigned long long flags, CUdriverProcAddressQueryResult *status),
     cu.cuGetProcAddress_v2(symbol, function, RUNTIME_VERSION, flags, status))
PASS(driver_load, cudaGetDriverEntryPoint_ptsz,
     (const char *symbol, void **function, unsigned long long flags, CUdriverProcAddressQueryResult *status),
     cu.cuGetProcAddress_v2(symbol, function, RUNTIME_VERSION, flags ? flags : PER_THREAD, status))
