/* Another library that interposes dlsym, as libraries that share out a GPU do, and functions of the driver for a caller
 * that asks for them by a handle. It has no dlvsym, and no function of the driver's by name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

int hooked_launches, hooked_allocations, hooked_frees;

typedef int launch_function(void *, void (*)(void *), void *);
static launch_function *real_launch;
typedef int allocate_function(uintptr_t *, size_t);
static allocate_function *real_allocate;
typedef int free_function(uintptr_t);
static free_function *real_free;

static int hooked_launch(void *stream, void (*function)(void *), void *argument)
{
	hooked_launches++;
	return real_launch(stream, function, argument);
}

static int hooked_allocate(uintptr_t *memory, size_t size)
{
	hooked_allocations++;
	return real_allocate(memory, size);
}

static int hooked_free(uintptr_t memory)
{
	hooked_frees++;
	return real_free(memory);
}

void *dlsym(void *handle, const char *name)
{
	static void *(*next)(void *, const char *);
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	for (unsigned i = 0; !next && i < sizeof versions / sizeof *versions; i++)
		next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	void *found = next(handle, name); /* RTLD_NEXT means behind this library */
	if (!found || handle == RTLD_NEXT || handle == RTLD_DEFAULT)
		return found;
	if (strcmp(name, "cuLaunchHostFunc") == 0)
		return real_launch = (launch_function *)found, (void *)hooked_launch;
	if (strcmp(name, "cuMemAlloc_v2") == 0)
		return real_allocate = (allocate_function *)found, (void *)hooked_allocate;
	if (strcmp(name, "cuMemFree_v2") == 0)
		return real_free = (free_function *)found, (void *)hooked_free;
	return found;
}
