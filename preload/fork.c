/* fork tells whether the process has forked since a moment, by whatever call. What is then to be done is left to those
 * who ask. */
#define _GNU_SOURCE
#include "shim.h"
#include "region.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* _Fork and clone run no handlers, so the kernel is asked to empty a page in every child. One that does not
 * know how leaves the number of the process, at a system call for each question. */
HIDDEN void fork_mark_set(struct fork_mark *mark)
{
	volatile char *page = atomic_load(&mark->page);
	if (!page) {
		size_t size = (size_t)sysconf(_SC_PAGESIZE);
		void *fresh = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (fresh != MAP_FAILED && madvise(fresh, size, MADV_WIPEONFORK) == 0)
			page = fresh;
		else if (fresh != MAP_FAILED)
			munmap(fresh, size);
	}
	if (page)
		*page = 1;
	atomic_store(&mark->process, getpid());
	atomic_store(&mark->page, page);
}

HIDDEN bool fork_other_process(struct fork_mark *mark)
{
	pid_t process = atomic_load(&mark->process);
	return process != 0 && process != getpid();
}
