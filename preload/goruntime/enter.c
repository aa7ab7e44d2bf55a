/* enter lets threads of the host into Go, and out. It wakes the runtime at the first call that needs the engine, never
 * at load (docs/design/start.md), knows when a fork has left the runtime behind, and keeps each
 * thread's data. threads.c and memory.c have Go's own threads and memory, handlers.c has signals. */
#define _GNU_SOURCE
#include "goruntime.h"
#include "region.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* glibc's pthread_atfork, which is linked into each library, calls this function. musl has no such function, and the
 * loader there refuses a library that needs it. */
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

/* _Fork and clone run no handlers, so the kernel is asked to empty a page in every child. With a kernel that cannot,
 * the process's number answers, at a system call for each question. */
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

/* Only a pointer, because static TLS is scarce when the library is dlopen'ed. */
HIDDEN __thread struct thread *thread_known __attribute__((tls_model("initial-exec")));
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static size_t thread_size;

/* There is room for a handler of the host's too, which runs there when the driver faults below us. It takes memory only
 * when something does fault. */
enum { STACK_SIZE = 128 << 10 };

/* A destructor of the host may call this library later, which then makes the thread's data again. */
static void forget(void *mine)
{
	thread_known = NULL;
	munmap(((struct thread *)mine)->faults.ss_sp, thread_size);
}

static void prepare(void)
{
	if (pthread_key_create(&key, forget) != 0)
		key = (pthread_key_t)-1; /* the memory of threads that end is leaked then */
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	thread_size = (STACK_SIZE + getauxval(AT_MINSIGSTKSZ) + sizeof(struct thread) + page - 1) & ~(page - 1);
}

HIDDEN struct thread *thread_new(void)
{
	pthread_once(&once, prepare);
	char *base = memory_map(NULL, thread_size, PROT_READ | PROT_WRITE);
	if (!base)
		return NULL;
	struct thread *mine = (struct thread *)(base + thread_size) - 1; /* above the stack, which grows away from it */
	mine->faults = (stack_t){.ss_sp = base, .ss_size = (size_t)((char *)mine - base)};
	if (key != (pthread_key_t)-1)
		pthread_setspecific(key, mine);
	thread_known = mine;
	return mine;
}

extern void tmsAwake(void); /* goruntime.go */

HIDDEN _Atomic int go_state = GO_ASLEEP;
HIDDEN struct fork_mark go_process;

typedef void initialiser(int argc, char **argv, char **envp);
/* Weak, because a test binary is linked without goinit.ld: there Go is awake from the start. */
extern initialiser *goinit_start[] __attribute__((weak)) HIDDEN;
extern initialiser *goinit_end[] __attribute__((weak)) HIDDEN;

/* scripts/deferrelocations puts the relocations of the Go data here; without it the loader has applied them. Volatile:
 * the compiler must not rely on the initial values. */
static const volatile struct {
	uint64_t first, count;
} deferred __attribute__((section(".tms_deferred"), used)) = {0, 0};

/* Go's start maps a few dozen pieces, and vm.max_map_count may leave room for none. */
enum { MAPPINGS_NEEDED = 128 };

/* Does the dynamic loader's work for the relocations that were put off, which are all relative. */
static void relocate(void)
{
	uintptr_t base = (uintptr_t)__ehdr_start;
	const Elf64_Rela *relocations = (const Elf64_Rela *)(base + deferred.first);
	for (uint64_t i = 0; i < deferred.count; i++)
		*(uintptr_t *)(base + relocations[i].r_offset) = base + (uintptr_t)relocations[i].r_addend;
}

/* Go gets a fresh copy of what the kernel puts on a program's stack: the host may have overwritten its own
 * (setproctitle), and its GODEBUG and GOGC are not meant for us. Without asynchronous preemption Go never sends SIGURG
 * to a host thread. Reading the quota of a control group would keep a descriptor open, and naming mappings would split
 * them. A goroutine's stack keeps the room made for faults. */
static void run_initialisers(void)
{
	static uintptr_t block[32];
	int n = 0;
	block[n++] = (uintptr_t) "tms";
	block[n++] = 0;
	int environment = n;
	block[n++] = (uintptr_t) "GODEBUG=asyncpreemptoff=1,containermaxprocs=0,updatemaxprocs=0,decoratemappings=0,"
				   "gcshrinkstackoff=1";
	static char processors[32];
	snprintf(processors, sizeof processors, "GOMAXPROCS=%d", threads_processors());
	block[n++] = (uintptr_t)processors;
	block[n++] = 0;
	static const unsigned long kinds[] = {AT_PAGESZ, AT_RANDOM, AT_HWCAP, AT_HWCAP2, AT_SYSINFO_EHDR,
					      AT_SECURE};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		block[n++] = kinds[i];
		block[n++] = getauxval(kinds[i]);
	}
	block[n++] = AT_NULL;
	block[n++] = 0;
	for (initialiser **run = goinit_start; run < goinit_end; run++)
		(*run)(1, (char **)block, (char **)(block + environment));
}

static void *initialise(void *done)
{
	relocate();
	run_initialisers();
	sem_post(done);
	return NULL;
}

/* Go's threads inherit from the thread that starts the runtime, so that is not one of the host's. */
static void (*when_awake)(void); /* set at load */

static void start(void)
{
	sem_t done;
	sem_init(&done, 0, 0);
	threads_run(initialise, &done);
	while (sem_wait(&done) != 0)
		;
	sem_destroy(&done);
	tmsAwake(); /* returns once the runtime is up */
	handlers_arm();
	atomic_store(&go_state, GO_AWAKE);
	if (when_awake)
		when_awake();
}

static int reserve(void)
{
	if (!memory_reserve())
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "the process has no room for %zu MiB of address space, which the library's runtime "
				  "needs; raise ulimit -v and ulimit -d, ulimit -l under mlockall, or vm.max_map_count, to use "
				  "pausable memory",
				  memory_at_start() >> 20);
	bool has_threads = threads_reserve(1, 0);
	if (has_threads && memory_spare(MAPPINGS_NEEDED))
		return SUCCESS;
	threads_release();
	memory_release();
	if (!has_threads)
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "the process cannot make %d threads; raise ulimit -u or the pids limit, ulimit -v, "
				  "ulimit -d, ulimit -l under mlockall, or vm.max_map_count to use pausable memory",
				  THREADS_AT_START + THREADS_PER_DEVICE);
	return error_fail(ERROR_OPERATING_SYSTEM,
			  "the process cannot map %d more pieces of memory; raise vm.max_map_count (or ulimit -v, or "
			  "ulimit -l under mlockall) to use pausable memory",
			  MAPPINGS_NEEDED);
}

/* One thread starts Go and the others wait, without a lock that a fork could leave held. They sleep between looks:
 * hundreds that look all the time would keep it from starting. */
enum { PAUSE_FIRST = 50000, PAUSE_MOST = 5000000 }; /* nanoseconds */
OUT_OF_LINE bool claim(void)
{
	for (long pause = PAUSE_FIRST;;) {
		int state = go_now();
		if (state == GO_AWAKE || state == GO_DEAD)
			return false;
		if (state == GO_STARTING) {
			nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
			pause = pause < PAUSE_MOST / 2 ? 2 * pause : PAUSE_MOST;
			continue;
		}
		fork_mark_set(&go_process);
		if (atomic_compare_exchange_strong(&go_state, &state, GO_STARTING))
			return true;
	}
}

static int start_if_possible(void)
{
	if (!claim())
		return SUCCESS;
	int code = reserve();
	if (code == SUCCESS)
		start();
	else
		atomic_store(&go_state, GO_ASLEEP);
	return code;
}

/* All signals are blocked except those for which the kernel kills a process that blocks them. Faults Go turns into a
 * panic, which the exports catch. They land on the thread's stack for them, which on_fault puts in place at the first
 * one; Go must see it in place when it first meets the thread. A sandbox answers system calls in a handler for SIGSYS,
 * which runs where it would in the host (scripts/build.sh). */
static void enter(struct visit *visit, struct thread *mine)
{
	sigset_t blocked;
	sigfillset(&blocked);
	sigdelset(&blocked, SIGSEGV);
	sigdelset(&blocked, SIGBUS);
	sigdelset(&blocked, SIGFPE);
	sigdelset(&blocked, SIGSYS);
	pthread_sigmask(SIG_SETMASK, &blocked, &visit->mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &visit->cancellation);
	visit->has_faulted = unlikely(!mine->known_to_go) && sigaltstack(&mine->faults, &visit->stack) == 0;
	visit->outer = mine->visit;
	mine->visit = visit;
}

HIDDEN void go_leave(struct visit *visit)
{
	thread_known->visit = visit->outer;
	if (unlikely(visit->has_faulted))
		sigaltstack(&visit->stack, NULL);
	pthread_sigmask(SIG_SETMASK, &visit->mask, NULL);
	pthread_setcancelstate(visit->cancellation, NULL);
}

HIDDEN int go_start(void)
{
	int state = go_now();
	if (likely(state == GO_AWAKE))
		return SUCCESS;
	int code = SUCCESS;
	if (state != GO_DEAD) {
		region_report_environment(error_log);
		struct thread *mine = thread_mine();
		if (!mine)
			return ERROR_MEMORY_ALLOCATION;
		struct visit visit;
		enter(&visit, mine); /* the Go runtime's threads inherit the mask */
		code = start_if_possible();
		go_leave(&visit);
	}
	if (go_now() == GO_DEAD)
		return error_fail(ERROR_FORKED,
				  "this process was forked from one that used pausable memory; CUDA does not "
				  "survive fork: start workers with spawn or exec instead");
	return code;
}

HIDDEN int go_enter(struct visit *visit)
{
	int code = go_start();
	if (unlikely(code))
		return code;
	struct thread *mine = thread_mine();
	if (unlikely(!mine))
		return ERROR_MEMORY_ALLOCATION;
	if (unlikely(atomic_load_explicit(&handlers_armed, memory_order_relaxed) != HANDLERS_ALL))
		handlers_arm();
	enter(visit, mine);
	mine->known_to_go = true;
	if (unlikely(__atomic_load_n(&memory_short, __ATOMIC_RELAXED)))
		memory_extend();
	return SUCCESS;
}

AT_LOAD HIDDEN void go_load(void (*awake)(void))
{
	when_awake = awake;
	descriptor_load();
	if (&goinit_start[0] == &goinit_end[0]) {
		fork_mark_set(&go_process);
		atomic_store(&go_state, GO_AWAKE);
	}
}
