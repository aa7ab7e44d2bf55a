/* dlfcn hands purego's calls of the loader on: purego names them in Go, where glibc.h cannot choose their version. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>

HIDDEN void *__wrap_dlopen(const char *path, int flags)
{
	return dlopen(path, flags);
}

HIDDEN void *__wrap_dlsym(void *handle, const char *name)
{
	return dlsym(handle, name);
}

HIDDEN int __wrap_dlclose(void *handle)
{
	return dlclose(handle);
}

HIDDEN char *__wrap_dlerror(void)
{
	return dlerror();
}
