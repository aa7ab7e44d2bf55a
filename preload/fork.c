/* fork is the core of being told that the process has forked. */
#define _GNU_SOURCE
#include "seam.h"
#include "region.h"

#include <dlfcn.h>

/* What glibc's pthread_atfork, which is linked into each library, calls. musl has none, and the loader there
 * refuses a library that needs it. */
extern int __register_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void), void *library)
	__attribute__((weak));
extern void *__dso_handle HIDDEN;

AT_LOAD HIDDEN void fork_notify(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
	if (__register_atfork) {
		__register_atfork(before, in_parent, in_child, &__dso_handle);
		return;
	}
	int (*atfork)(void (*)(void), void (*)(void), void (*)(void)) =
		(int (*)(void (*)(void), void (*)(void), void (*)(void)))dlsym(RTLD_DEFAULT, "pthread_atfork");
	if (atfork)
		atfork(before, in_parent, in_child);
}
