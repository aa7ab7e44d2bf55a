/* entry answers a program that asks by name for a function of the driver, or of NVML, that this library interposes.
 * libtms_reach.so (gate/reach/) asks here what dlsym is to return. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"
#include "gate/reach/names.h"
#include "symbols.h"

#define NOT_BY_NAME(...)

/* Only addresses are needed here: the files that define the functions have their types. */
#define DECLARE(since, symbol, ...) extern const char at_##symbol[] __asm__(#symbol);
FORWARD_FUNCTIONS(NOT_BY_NAME, DECLARE)

static const struct named names[] = {
#define NAME(since, symbol, ...) {#symbol, since, at_##symbol},
	FORWARD_FUNCTIONS(NOT_BY_NAME, NAME)
};
enum { NAMES = sizeof names / sizeof *names };

static void *theirs_of(size_t i)
{
	return forward_find(names[i].symbol);
}

static int found(int code, const char *name, void **function, int version, uint64_t flags)
{
	if (code != SUCCESS || !name || name[0] != 'c' || !function || !*function)
		return code;
	bool is_newer;
	const struct named *named = named_by(names, NAMES, name, version, flags & PER_THREAD, *function, theirs_of,
					     forward_find, &is_newer);
	if (named)
		*function = (void *)named->ours;
	return code;
}

/* The version that cudaGetDriverEntryPoint means is libcudart's own. */
static int runtime_version(void)
{
	int version = 0;
	return forward_cudaRuntimeGetVersion(&version) == SUCCESS ? version : 12000;
}

/* In a program whose default stream is each thread's own; flags may still ask for the legacy one. */
enum { LEGACY = 1 };

#define FINDS(symbol, parameters, arguments, asked, mode)                                                  \
	EXPORT int symbol parameters                                                                       \
	{                                                                                                  \
		return found(forward_##symbol arguments, name, function, asked, mode);                     \
	}
FINDS(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags),
      (name, function, version, flags), version, flags)
FINDS(cuGetProcAddress_v2, (const char *name, void **function, int version, uint64_t flags, int *status),
      (name, function, version, flags, status), version, flags)

#define FINDS_BY_RUNTIME(suffix, mode)                                                                     \
	FINDS(cudaGetDriverEntryPoint##suffix,                                                             \
	      (const char *name, void **function, unsigned long long flags, int *status),                  \
	      (name, function, flags, status), runtime_version(), mode)                                    \
	FINDS(cudaGetDriverEntryPointByVersion##suffix,                                                    \
	      (const char *name, void **function, unsigned version, unsigned long long flags, int *status), \
	      (name, function, version, flags, status), (int)version, mode)
FINDS_BY_RUNTIME(, flags)
FINDS_BY_RUNTIME(_ptsz, flags & LEGACY ? 0 : PER_THREAD)

/* Returns this library's function for dlsym to return to caller in place of theirs, or NULL if there is none of that
 * name. */
EXPORT void *tms_driver_function(const char *name, void *theirs, const void *caller)
{
	/* This library uses the driver's own functions, which pass no gate. Only its calls that poll go through the
	 * gate, because the driver's checkpoint would kill the process in one. */
	if ((const char *)caller >= __ehdr_start && (const char *)caller < etext)
		return gate_polls(name) ? NULL : theirs;
	if (name[0] == 'n')
		return nvml_function(name, theirs);
	for (size_t i = 0; i < NAMES; i++)
		if (strcmp(names[i].symbol, name) == 0)
			return is_of_driver(theirs) ? (void *)names[i].ours : NULL;
	return NULL;
}
