/* threads makes the Go runtime's threads. The runtime aborts the process when it cannot make one, so they are made
 * ahead and wait here. See docs/design/limits.md. */
#define _GNU_SOURCE
#include "goruntime.h"
#include "forward.h"
#include "libraries.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The first two words of Go's goroutine, and the arguments of a new thread, as in Go's libcgo.h. */
struct goroutine {
	uintptr_t stack_low, stack_high;
};
struct go_thread {
	struct goroutine *g;
	uintptr_t *tls;
	void (*run)(void);
};
static void (*set_goroutine)(void *);
extern void crosscall1(void (*run)(void), void (*set)(void *), void *g) __attribute__((weak));

/* Work for one thread: run(argument), or what Go's threads do. */
struct work {
	void *(*run)(void *);
	void *argument;
	struct go_thread go;
};

/* SPARE: never busy with the loader, whose lock the host may hold. */
enum { THREADS_MAX = 1024, STACK_SIZE = 2 << 20, SPARE = 8, HEAPS = 2000, WARMING = 20 /* milliseconds, at most */ };
/* Under the lock, which is taken with signals blocked. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
	pthread_t id;
	char *stack;
} threads[THREADS_MAX];
static struct work queue[THREADS_MAX];
static int made, queued, idle; /* idle: of those made, without work or a place in the queue */
static int without_heap, cold; /* threads that have no heap yet, and that have not called the driver */
static bool leaving, warming;

/* The processors of the process, as far as is known. */
static unsigned long processors[8192 / (8 * sizeof(unsigned long))];
enum { FEW = 4 };

static long affinity(pid_t thread, unsigned long *mask)
{
	memset(mask, 0, sizeof processors);
	return syscall(SYS_sched_getaffinity, thread, sizeof processors, mask);
}

static int count(const unsigned long *mask)
{
	int bits = 0;
	for (size_t i = 0; i < sizeof processors / sizeof *processors; i++)
		bits += __builtin_popcountl(mask[i]);
	return bits;
}

/* A launcher gives all threads the processors of the process (taskset, numactl, slurm); a program may pin its
 * main thread to one, which is not meant for the threads of a library. */
static void find_processors(void)
{
	static unsigned long of_caller[sizeof processors / sizeof *processors]; /* under the lock */
	affinity(getpid(), processors);
	affinity(0, of_caller);
	for (size_t i = 0; i < sizeof processors / sizeof *processors; i++)
		processors[i] |= of_caller[i];
	if (count(processors) < FEW)
		memset(processors, 0xff, sizeof processors); /* the kernel cuts it to what the control group has */
}

HIDDEN int threads_processors(void)
{
	unsigned long mine[sizeof processors / sizeof *processors];
	affinity(0, mine);
	int found = count(mine);
	return found < 1 ? 1 : found < PROCESSORS_MAX ? found : PROCESSORS_MAX;
}

static void run(struct work *work, uintptr_t stack_low)
{
	if (work->run) {
		work->run(work->argument);
		return;
	}
	work->go.g->stack_high = (uintptr_t)&work - stack_low - 4096; /* the size: Go finds where it is */
	crosscall1(work->go.run, set_goroutine, work->go.g);
}

/* glibc gives a thread a heap, with 64 MiB of addresses, at its first allocation. A thread that has one finds memory
 * there when the process may have no more: for the driver's records, and for the driver's thread-local data, without
 * which the loader ends the process. */
static bool may_have_heap(void)
{
	struct rlimit limit;
	return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur >= (rlim_t)64 << 30;
}

static void get_heap(void)
{
	void *volatile memory = may_have_heap() ? malloc(1024) : NULL;
	free(memory);
}

/* A thread's first driver call takes memory for what the driver keeps per thread. */
static void call_driver(void)
{
	void *context;
	if (may_have_heap())
		forward_cuCtxGetCurrent(&context);
}

HIDDEN __thread bool threads_is_ours __attribute__((tls_model("initial-exec")));

/* The low end of the stack has the mask that the thread is to have. Until threads_is_ours is set the thread blocks
 * faults, because a fault that is sent to the process would otherwise run the host's handler here. */
static void *wait_for_work(void *stack_low)
{
	threads_is_ours = true;
	pthread_sigmask(SIG_SETMASK, stack_low, NULL);
	syscall(SYS_sched_setaffinity, 0, sizeof processors, processors);
	sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
	bool heap = false, warm = false;
	pthread_mutex_lock(&lock);
	while (!leaving) {
		if (!heap && (queued > 0 || warming)) {
			pthread_mutex_unlock(&lock);
			get_heap();
			pthread_mutex_lock(&lock);
			heap = true;
			without_heap--;
		} else if (queued > 0) {
			struct work work = queue[--queued];
			pthread_mutex_unlock(&lock);
			run(&work, (uintptr_t)stack_low); /* Go's end, too, when it locked them */
			pthread_mutex_lock(&lock);
			idle++;
		} else if (!warm && warming && idle > SPARE) {
			idle--;
			pthread_mutex_unlock(&lock);
			call_driver();
			pthread_mutex_lock(&lock);
			idle++;
			warm = true;
			if (--cold > 0)
				pthread_cond_broadcast(&changed);
			else
				warming = false;
		} else {
			pthread_cond_wait(&changed, &lock);
		}
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static int add_thread_local(struct dl_phdr_info *info, size_t size, void *sum)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
	return 0;
}

/* glibc puts what the program and its libraries have thread-local on the stack. How much is fixed at the process's
 * start: later libraries find room in what it has kept for them, or have memory of their own. */
static size_t stack_size(void)
{
	static size_t found; /* under the lock */
	size_t page = (size_t)sysconf(_SC_PAGESIZE), local = 0;
	if (!found) {
		libraries_each(add_thread_local, &local);
		found = (STACK_SIZE + local + (size_t)sysconf(_SC_THREAD_STACK_MIN) + page - 1) & ~(page - 1);
	}
	return found;
}

/* Makes a thread on a stack of this library. A stack from glibc's cache that was in use when the process forked hangs
 * the child's next dlopen. */
static bool make(void)
{
	size_t guard = (size_t)sysconf(_SC_PAGESIZE), size = stack_size();
	if (made == THREADS_MAX)
		return false;
	char *stack = memory_map(NULL, guard + size, PROT_NONE);
	if (!stack || mprotect(stack + guard, size, PROT_READ | PROT_WRITE) != 0) {
		if (stack)
			munmap(stack, guard + size);
		return false;
	}
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stack + guard, size);
	sigset_t faults, mask;
	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	sigaddset(&faults, SIGBUS);
	sigaddset(&faults, SIGFPE);
	pthread_sigmask(SIG_BLOCK, &faults, &mask);
	memcpy(stack + guard, &mask, sizeof mask);
	bool ok = pthread_create(&threads[made].id, &attributes, wait_for_work, stack + guard) == 0;
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_attr_destroy(&attributes);
	if (!ok) {
		munmap(stack, guard + size);
		return false;
	}
	threads[made++].stack = stack;
	idle++;
	without_heap++;
	cold++;
	return true;
}

static int64_t milliseconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* Waits until a count of threads is 0, or for a time. By the clock, as a nap may take much longer than it should. The
 * caller has the lock. */
static void await(const int *left, int milliseconds)
{
	int64_t until = milliseconds_now() + milliseconds;
	while (*left > 0 && milliseconds_now() < until) {
		pthread_mutex_unlock(&lock);
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
		pthread_mutex_lock(&lock);
	}
}

static int of_control;

HIDDEN bool threads_reserve_control(int more)
{
	pthread_mutex_lock(&lock);
	of_control = THREADS_OF_CONTROL + more;
	pthread_mutex_unlock(&lock);
	if (threads_reserve(1, 0))
		return true;
	pthread_mutex_lock(&lock);
	of_control = 0;
	pthread_mutex_unlock(&lock);
	return false;
}

HIDDEN bool threads_reserve(int devices, int operations)
{
	static int most_devices = 1, most_operations;
	pthread_mutex_lock(&lock);
	if (devices < most_devices)
		devices = most_devices;
	if (operations < most_operations)
		operations = most_operations;
	int wanted = THREADS_AT_START + of_control + THREADS_PER_DEVICE * devices +
		     (operations > OPERATIONS_AT_START ? 2 * (operations - OPERATIONS_AT_START) : 0);
	if (made == 0)
		find_processors();
	while (made < wanted && make())
		;
	/* glibc gives each a heap of two mappings. */
	bool enough = made >= wanted && (cold == 0 || memory_spare(2 * cold + 64));
	if (enough) {
		most_devices = devices;
		most_operations = operations;
	}
	if (enough && cold > 0) {
		warming = true;
		pthread_cond_broadcast(&changed);
	}
	if (enough) {
		await(&without_heap, HEAPS);
		await(&cold, WARMING);
	}
	pthread_mutex_unlock(&lock);
	return enough;
}

HIDDEN void threads_release(void)
{
	pthread_mutex_lock(&lock);
	leaving = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	while (made > 0) {
		pthread_join(threads[--made].id, NULL);
		munmap(threads[made].stack, (size_t)sysconf(_SC_PAGESIZE) + stack_size());
	}
	leaving = warming = false;
	idle = without_heap = cold = 0;
}

static void give(struct work work)
{
	pthread_mutex_lock(&lock);
	while (idle == 0 && !make()) { /* more than were ever expected: better late than an abort */
		pthread_mutex_unlock(&lock);
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
		pthread_mutex_lock(&lock);
	}
	idle--;
	queue[queued++] = work;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

HIDDEN void threads_run(void *(*run)(void *), void *argument)
{
	give((struct work){.run = run, .argument = argument});
}

/* The Go runtime calls these (scripts/build.sh): to set up C, and for a thread. */
extern void __real_x_cgo_init(void *g, void (*set)(void *), void **tls, void **base) __attribute__((weak));

HIDDEN void __wrap_x_cgo_init(void *g, void (*set)(void *), void **tls, void **base)
{
	set_goroutine = set;
	__real_x_cgo_init(g, set, tls, base);
}

HIDDEN void __wrap_x_cgo_thread_start(const struct go_thread *thread)
{
	give((struct work){.go = *thread});
}

HIDDEN void __wrap_x_cgo_sys_thread_create(void *(*run)(void *), void *argument)
{
	threads_run(run, argument);
}
