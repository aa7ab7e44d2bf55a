// cuGetProcAddress: from a plain name and a CUDA version to a function.
#include <string.h>

#include "entry/gate.h"

enum { NEWEST = 13000 }; // what cuDriverGetVersion says

static const struct {
	const char *name, *symbol;
	int since;
	void *function;
} functions[] = {
#define X(name, symbol, since, needs) {#name, #symbol, since, (void *)symbol},
	DRIVER_FUNCTIONS(X)
#undef X
#define X(name, symbol, since) {#name, #symbol, since, (void *)symbol},
		FUNCTION_ALIASES(X)
#undef X
};

static const struct {
	const char *symbol;
	void *function;
} per_thread[] = {
#define X(symbol, suffix) {#symbol, (void *)symbol##_##suffix},
	PER_THREAD_FUNCTIONS(X)
#undef X
};

static CUresult look_up(const char *name, void **function, int version, uint64_t flags,
			CUdriverProcAddressQueryResult *status)
{
	const uint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM |
			       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	if (!name || !*name || !function || version < 0 || version > NEWEST || flags & ~known ||
	    flags == known)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	const char *symbol = NULL;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		if (strcmp(functions[i].name, name))
			continue;
		if (*status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (functions[i].since > version)
			continue;
		*status = CU_GET_PROC_ADDRESS_SUCCESS; // later versions stand later
		*function = functions[i].function;
		symbol = functions[i].symbol;
	}
	if (!symbol || !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
		return CUDA_SUCCESS;
	for (size_t i = 0; i < sizeof per_thread / sizeof *per_thread; i++)
		if (!strcmp(per_thread[i].symbol, symbol))
			*function = per_thread[i].function;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	ENTER(cuGetProcAddress);
	CUdriverProcAddressQueryResult status;
	TRY(look_up(symbol, function, version, flags, &status));
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	ENTER(cuGetProcAddress_v2);
	CUdriverProcAddressQueryResult ignored;
	return look_up(symbol, function, version, flags, status ? status : &ignored);
}
