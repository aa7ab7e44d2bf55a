/* start is the core of the lazy start: the Go runtime wakes at the first call that needs the
 * engine, never at load. See docs/rationale.md, "The deferred start". */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "region.h"

#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

HIDDEN _Atomic int go_state = GO_ASLEEP;
HIDDEN struct fork_mark go_process;

typedef void initialiser(int argc, char **argv, char **envp);
/* Weak, because a test binary is linked without goinit.ld: there Go is awake from the start. */
extern initialiser *tms_goinit_start[] __attribute__((weak)) HIDDEN;
extern initialiser *tms_goinit_end[] __attribute__((weak)) HIDDEN;

/* Where internal/deferrelocations put the relocations of the Go data; without it the loader has done
 * them. Volatile: the compiler must not believe what it sees here. */
static const volatile struct {
	uint64_t first, count;
} deferred __attribute__((section(".tms_deferred"), used)) = {0, 0};

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Go aborts the process when it cannot make a thread or reserve memory, so ask first. */
enum { THREADS_NEEDED = 8 };
#define ADDRESS_SPACE_NEEDED ((rlim_t)1 << 30)

static void *wait_for_release(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

static bool can_make_threads(void)
{
	pthread_t threads[THREADS_NEEDED];
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	int made = 0;
	pthread_mutex_lock(&gate);
	while (made < THREADS_NEEDED &&
	       pthread_create(&threads[made], NULL, wait_for_release, &gate) == 0)
		made++;
	pthread_mutex_unlock(&gate);
	for (int i = 0; i < made; i++)
		pthread_join(threads[i], NULL);
	return made == THREADS_NEEDED;
}

static bool has_address_space(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return true;
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "re");
	if (!statm)
		return true;
	bool known = fscanf(statm, "%lu", &pages) == 1;
	fclose(statm);
	rlim_t used = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
	return !known || (used < limit.rlim_cur && limit.rlim_cur - used >= ADDRESS_SPACE_NEEDED);
}

/* What the dynamic loader would have done: all of them are relative. */
static void relocate(void)
{
	uintptr_t base = (uintptr_t)__ehdr_start;
	const Elf64_Rela *relocations = (const Elf64_Rela *)(base + deferred.first);
	for (uint64_t i = 0; i < deferred.count; i++)
		*(uintptr_t *)(base + relocations[i].r_offset) = base + (uintptr_t)relocations[i].r_addend;
}

/* What the kernel puts on a new program's stack, made anew: the host may have written over its own
 * (setproctitle), and its GODEBUG and GOGC are not meant for us. Without asynchronous preemption
 * Go never sends SIGURG to a host thread. Looking at the quota of a control group would keep a descriptor
 * open, and names for mappings would split them. */
static void run_initialisers(void)
{
	static uintptr_t block[32];
	int n = 0;
	block[n++] = (uintptr_t) "tms";
	block[n++] = 0;
	int environment = n;
	block[n++] = (uintptr_t) "GODEBUG=asyncpreemptoff=1,containermaxprocs=0,updatemaxprocs=0,decoratemappings=0";
	block[n++] = 0;
	static const unsigned long kinds[] = {AT_PAGESZ, AT_RANDOM, AT_HWCAP, AT_HWCAP2, AT_SYSINFO_EHDR,
					      AT_SECURE};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		block[n++] = kinds[i];
		block[n++] = getauxval(kinds[i]);
	}
	block[n++] = AT_NULL;
	block[n++] = 0;
	for (initialiser **run = tms_goinit_start; run < tms_goinit_end; run++)
		(*run)(1, (char **)block, (char **)(block + environment));
}

static void start(void)
{
	fork_mark_set(&go_process);
	atomic_store(&go_state, GO_STARTING);
	relocate();
	run_initialisers();
	tmsAwake(); /* returns once the runtime is up */
	handlers_arm();
	atomic_store(&go_state, GO_AWAKE);
}

static int start_if_possible(void)
{
	if (!has_address_space())
		return error_fail(ERROR_MEMORY_ALLOCATION,
				  "the address space limit (ulimit -v) leaves less than 1 GiB; raise it to use "
				  "pausable memory");
	if (!can_make_threads())
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "the process cannot make %d threads; raise ulimit -u or the pids limit to use "
				  "pausable memory",
				  THREADS_NEEDED);
	pthread_once(&once, start);
	return SUCCESS;
}

/* Everything is blocked but the faults that Go turns into a panic, which the exports catch: the kernel
 * kills for one that is blocked. */
static void enter(struct visit *visit, struct thread *mine)
{
	sigset_t all, but_faults;
	sigfillset(&all);
	but_faults = all;
	sigdelset(&but_faults, SIGSEGV);
	sigdelset(&but_faults, SIGBUS);
	sigdelset(&but_faults, SIGFPE);
	pthread_sigmask(SIG_SETMASK, &but_faults, &visit->mask);
	visit->on_stack = sigaltstack(&mine->faults, &visit->stack) == 0;
	/* In a handler of the host's, on its stack, which cannot be exchanged now: a fault would land on
	 * what the handler keeps there. */
	if (unlikely(!visit->on_stack))
		pthread_sigmask(SIG_SETMASK, &all, NULL);
}

HIDDEN void go_leave(const struct visit *visit)
{
	if (likely(visit->on_stack))
		sigaltstack(&visit->stack, NULL);
	pthread_sigmask(SIG_SETMASK, &visit->mask, NULL);
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
	return SUCCESS;
}

/* Without a system call of ours that the loader does not make too: a sandbox may kill for others. */
__attribute__((constructor)) static void at_load(void)
{
	descriptor_load();
	region_load_environment();
	trace_load();
	if (&tms_goinit_start[0] == &tms_goinit_end[0]) {
		fork_mark_set(&go_process);
		atomic_store(&go_state, GO_AWAKE);
	}
}
