/* thread makes what is kept for one thread of the host, at its first need, and frees it at the thread's end. What it is
 * for is left to message.c and start.c. */
#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

/* A pointer, not the thing itself: static TLS is scarce when the library is dlopen'ed. */
HIDDEN __thread struct thread *thread_known __attribute__((tls_model("initial-exec")));
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static size_t size;

/* Room for a handler of the host's too: it runs there when the driver faults below us. Memory only when
 * something does fault. */
enum { STACK_SIZE = 128 << 10 };

/* A destructor of the host's may come later and call us: what it needs is then made anew. */
static void forget(void *mine)
{
	thread_known = NULL;
	munmap(((struct thread *)mine)->faults.ss_sp, size);
}

static void prepare(void)
{
	if (pthread_key_create(&key, forget) != 0)
		key = (pthread_key_t)-1; /* what ended threads had then leaks */
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size = (STACK_SIZE + getauxval(AT_MINSIGSTKSZ) + sizeof(struct thread) + page - 1) & ~(page - 1);
}

HIDDEN struct thread *thread_new(void)
{
	pthread_once(&once, prepare);
	char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK,
			  -1, 0);
	if (base == MAP_FAILED)
		return NULL;
	struct thread *mine = (struct thread *)(base + size) - 1; /* above the stack, which grows away from it */
	mine->faults = (stack_t){.ss_sp = base, .ss_size = (size_t)((char *)mine - base)};
	if (key != (pthread_key_t)-1)
		pthread_setspecific(key, mine);
	thread_known = mine;
	return mine;
}
