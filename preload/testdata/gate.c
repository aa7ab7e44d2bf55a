/* A gated pause holds up whoever gives the device work, and lets go of him whatever comes. arguments: the part; what
 * the part needs. */
#include "host.h"

#include <sched.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

typedef uintptr_t address;
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxPopCurrent_v2(void **);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuGraphDestroy(void *);
int cuGraphExecDestroy(void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuKernelGetFunction(void **, void *);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLibraryGetKernel(void **, void *, const char *);
int cuLibraryLoadData(void **, const void *, void *, void **, unsigned, void *, void **, unsigned);
int cuMemAllocAsync(address *, size_t, void *);
int cuMemExportToShareableHandle(void *, uint64_t, int, unsigned long long);
int cuMemFreeAsync(address, void *);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemRelease(uint64_t);
int cuMemRetainAllocationHandle(uint64_t *, void *);
int cuMemcpyDtoHAsync_v2(void *, address, size_t, void *);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuMemcpyHtoD_v2(address, const void *, size_t);
int cuMemsetD32Async(address, unsigned, size_t, void *);
int cuMemsetD32_v2(address, unsigned, size_t);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamEndCapture(void *, void **);
int cuStreamQuery(void *);
int cuStreamSynchronize(void *);

enum { SIZE = 4 * MIB, WORDS = 64, TIMEOUT = 909, NOT_SUPPORTED = 801 };

static void says(const char *words)
{
	if (!strstr(tms_last_error(), words)) {
		fprintf(stderr, "\"%s\" does not say \"%s\"\n", tms_last_error(), words);
		_exit(1);
	}
}

static void *start(void *(*run)(void *), void *argument, pthread_t *thread)
{
	EXPECT(pthread_create(thread, NULL, run, argument), 0);
	return NULL;
}

/* A thread that gives the device work when it is told to, and says when that has returned. */
struct worker {
	pthread_t thread;
	sem_t go;
	_Atomic int done;
	_Atomic pid_t number;
	int (*work)(void *);
	void *argument;
	int code;
};

static void *be_worker(void *argument)
{
	struct worker *w = argument;
	EXPECT(cudaFree(NULL), 0); /* the context */
	prctl(PR_SET_NAME, "a worker");
	w->number = (pid_t)syscall(SYS_gettid);
	while (sem_wait(&w->go) != 0)
		;
	w->code = w->work(w->argument);
	w->done = 1;
	return NULL;
}

static void give(struct worker *w, int (*work)(void *), void *argument)
{
	w->work = work;
	w->argument = argument;
	w->done = 0;
	sem_init(&w->go, 0, 0);
	start(be_worker, w, &w->thread);
	sem_post(&w->go);
}

static void held_up(struct worker *w)
{
	usleep(50000);
	CHECK(!w->done);
}

static void ended(struct worker *w, int code)
{
	EXPECT(pthread_join(w->thread, NULL), 0);
	EXPECT(w->code, code);
}

static int fill_words(void *target)
{
	return cuMemsetD32_v2((address)target, 5, WORDS);
}

static unsigned word_of(void *target)
{
	unsigned word = 0;
	EXPECT(cuMemcpyDtoH_v2(&word, (address)target, sizeof word), 0);
	return word;
}

/* Nobody is held up. */
static void is_open(void *memory)
{
	struct worker w;
	give(&w, fill_words, memory);
	ended(&w, 0);
	EXPECT(word_of(memory), 5);
}

static void basic(void)
{
	void *memory = pausable(SIZE, "t", true), *other = NULL;
	struct worker w;
	fill(memory, SIZE, 1);
	size_t before = free_bytes();
	EXPECT(tms_pause_gated("t", 5), 0);
	EXPECT(tms_last_bytes(), SIZE);
	EXPECT(free_bytes() - before, SIZE);
	give(&w, fill_words, memory);
	held_up(&w);
	/* The rest goes on. */
	EXPECT(cudaMalloc(&other, SIZE), 0);
	EXPECT(cudaFree(other), 0);
	other = pausable(SIZE, "u", true);
	EXPECT(cudaFree(other), 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	EXPECT(tms_pause_gated("t", 5), 0); /* once more */
	held_up(&w);
	EXPECT(tms_resume("t"), 0);
	ended(&w, 0);
	EXPECT(word_of(memory), 5);
	EXPECT(tms_pause_gated("there is none", 5), 0);
	is_open(memory);
	EXPECT(tms_pause_gated("t", -1), 1);
	says("no number of seconds");
	EXPECT(tms_pause_gated("t", 0.0 / 0.0), 1);
	EXPECT(cudaFree(memory), 0);
}

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : "basic";
	EXPECT(cudaFree(NULL), 0);
	if (!strcmp(part, "basic"))
		basic();
	return 0;
}
