// cuGetProcAddress: from a plain name and a CUDA version to a function.
#include <stdatomic.h>
#include <string.h>

#include "entry/gate.h"

enum { NEWEST = 13000 }; // as cuDriverGetVersion

static const struct {
	const char *name;
	int since;
	void *function, *per_thread; // the latter NULL: the same
} functions[] = {
#define X(since, needs, name, version, ...) {#name, since, (void *)name##version, NULL},
#define T(since, needs, name, version, ...) {#name, since, (void *)name##version, (void *)name##version##_ptds},
#define S(since, needs, name, version, ...) {#name, since, (void *)name##version, (void *)name##version##_ptsz},
	DRIVER_FUNCTIONS(X, T, S)
	{"cuGraphInstantiate", 12000, (void *)cuGraphInstantiateWithFlags, NULL},
};

// Only NVIDIA's libcudart asks for that function, of which nothing is published, and then fails with an error that says
// nothing of the simulator.
static void say_what_asks(const char *name)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	if (!strcmp(name, "cuGetExportTable") && !atomic_flag_test_and_set(&said))
		sim_complain("NVIDIA's own libcudart, as PyTorch, CuPy and JAX have it, cannot run on the simulator, which "
			     "runs no kernels; it needs a GPU");
}

static CUresult look_up(const char *name, void **function, int version, uint64_t flags,
			CUdriverProcAddressQueryResult *status)
{
	const uint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM |
			       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	if (!name || !*name || !function || version < 0 || version > NEWEST || flags & ~known ||
	    flags == known)
		return CUDA_ERROR_INVALID_VALUE;
	CUdriverProcAddressQueryResult ignored;
	status = status ? status : &ignored;
	*function = NULL;
	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	say_what_asks(name);
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		if (strcmp(functions[i].name, name))
			continue;
		if (*status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (functions[i].since > version)
			continue;
		*status = CU_GET_PROC_ADDRESS_SUCCESS; // later versions come later
		bool own = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && functions[i].per_thread;
		*function = own ? functions[i].per_thread : functions[i].function;
	}
	return CUDA_SUCCESS;
}

// The function's first version has no status.
static CUresult look_up_one(const char *name, void **function, int version, uint64_t flags)
{
	TRY(look_up(name, function, version, flags, NULL));
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

PROC_ADDRESS_FUNCTIONS(DEFINE)
