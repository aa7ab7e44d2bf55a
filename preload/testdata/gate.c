/* A gated pause holds up every thread that gives the device work, and releases it whatever comes. arguments: the part,
 * and what it needs. */
#include "host.h"

#pragma weak cuMemGetHandleForAddressRange
int cuMemGetHandleForAddressRange(void *, uintptr_t, size_t, int, unsigned long long);
int cuMemcpyHtoD_v2(uintptr_t, const void *, size_t);
int cuStreamQuery(void *);

enum { SIZE = 4 * MIB, WORDS = 64, PATIENCE = 600, TIMEOUT = 909, NOT_SUPPORTED = 801 };

static const char *more; /* the second argument, NULL if there is none */

static void says(const char *words)
{
	if (!strstr(tms_last_error(), words)) {
		fprintf(stderr, "\"%s\" does not say \"%s\"\n", tms_last_error(), words);
		_exit(1);
	}
}

/* A thread that gives the device work on request, and reports when the call has returned. */
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
	wait_at(&w->go);
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
	start(&w->thread, be_worker, w);
	sem_post(&w->go);
}

static void held_up(struct worker *w)
{
	usleep(50000);
	CHECK(!w->done);
}

/* The driver's function that a thread must be inside before the test goes on, and how often it was called. */
static struct {
	const char *counter;
	uint64_t before;
} awaited;

static bool simulated(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	return library && dlsym(library, "cudasim_stat");
}

static void await_call(const char *counter)
{
	awaited.counter = counter;
	awaited.before = simulated() ? sim_stat(counter) : 0;
}

static void is_called(void)
{
	if (!simulated()) { /* a GPU's driver counts no calls: scripts/bench/gatestorm.sh */
		usleep(50000);
		return;
	}
	AWAIT(sim_stat(awaited.counter) != awaited.before);
}

static void ended(struct worker *w, int code)
{
	join(w->thread);
	EXPECT(w->code, code);
}

static int fill_words(void *target)
{
	return cuMemsetD32_v2((uintptr_t)target, 5, WORDS);
}

static unsigned word_of(void *target)
{
	unsigned word = 0;
	EXPECT(cuMemcpyDtoH_v2(&word, (uintptr_t)target, sizeof word), 0);
	return word;
}

/* Checks that no thread is held up. */
static void is_open(void *memory)
{
	struct worker w;
	give(&w, fill_words, memory);
	ended(&w, 0);
	EXPECT(word_of(memory), 5);
}

static void goes_and_comes_back(void)
{
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	EXPECT(tms_resume(NULL), 0);
}

static void times_out(const char *words)
{
	EXPECT(tms_pause_gated(NULL, 0.2), TIMEOUT);
	says(words);
}

static void basic(void)
{
	void *memory = pausable(SIZE, "t", true), *other = NULL;
	struct worker w;
	fill(memory, SIZE, 1);
	size_t before = free_bytes();
	EXPECT(tms_pause_gated("t", PATIENCE), 0);
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
	EXPECT(tms_pause_gated("t", PATIENCE), 0); /* once more */
	held_up(&w);
	EXPECT(tms_resume("t"), 0);
	ended(&w, 0);
	EXPECT(word_of(memory), 5);
	EXPECT(tms_pause_gated("there is none", PATIENCE), 0);
	is_open(memory);
	EXPECT(tms_pause_gated("t", -1), 1);
	says("no number of seconds");
	EXPECT(tms_pause_gated("t", 0.0 / 0.0), 1);
	EXPECT(cudaFree(memory), 0);
}

static sem_t door;

static void *open_later(void *unused)
{
	usleep(100000);
	sem_post(&door);
	return unused;
}

static void *stream;

/* A synchronous copy, which lasts until the door is opened. */
static int copy_slowly(void *target)
{
	unsigned words[WORDS] = {7};
	EXPECT(cuLaunchHostFunc(stream, wait_at, &door), 0);
	return cuMemcpyHtoD_v2((uintptr_t)target, words, sizeof words);
}

static void inside(void)
{
	void *memory = pausable(SIZE, "t", true);
	char words[200];
	struct worker w;
	pthread_t opener;
	await_call("calls:cuMemcpyHtoD");
	give(&w, copy_slowly, memory);
	is_called();
	EXPECT(tms_pause_gated(NULL, 0.2), TIMEOUT);
	snprintf(words, sizeof words, "thread %d (a worker) has not come back from cuMemcpyHtoD_v2 within 200ms; nothing",
		 w.number);
	says(words);
	EXPECT(tms_pause_gated(NULL, 0), TIMEOUT);
	sem_post(&door);
	ended(&w, 0);
	EXPECT(word_of(memory), 7);
	is_open(memory);
	/* The pause waits for a call that returns in time. */
	await_call("calls:cuMemcpyHtoD");
	give(&w, copy_slowly, memory);
	is_called();
	start(&opener, open_later, NULL);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	while (!w.done) /* it is past the call, and may still have to report it */
		usleep(1000);
	EXPECT(tms_resume(NULL), 0);
	ended(&w, 0);
	join(opener);
	EXPECT(word_of(memory), 7);
}

static _Atomic bool capturing, captured_and_paused;

static int capture_a_while(void *target)
{
	void *graph = NULL, *exec = NULL;
	EXPECT(cuStreamBeginCapture_v2(stream, 2), 0);
	capturing = true;
	for (int i = 0; i < 100; i++) {
		EXPECT(cuMemsetD32Async((uintptr_t)target, 5, WORDS, stream), 0);
		usleep(1000);
	}
	EXPECT(cuStreamEndCapture(stream, &graph), 0);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
	AWAIT(captured_and_paused);
	EXPECT(cuGraphLaunch(exec, stream), 0); /* held up until the resume */
	EXPECT(cuStreamSynchronize(stream), 0);
	EXPECT(cuGraphExecDestroy(exec), 0);
	return cuGraphDestroy(graph);
}

static int begin_and_end(void *unused)
{
	void *graph = NULL;
	(void)unused;
	EXPECT(cudaStreamBeginCapture(stream, 2), 0);
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	return cuGraphDestroy(graph);
}

static void captured(void)
{
	void *memory = pausable(SIZE, "t", true), *graph = NULL;
	struct worker w;
	EXPECT(cuStreamBeginCapture_v2(stream, 2), 0);
	times_out("a stream is being captured into a CUDA graph, and that has not ended within 200ms; nothing has changed");
	EXPECT(cuMemsetD32Async((uintptr_t)memory, 5, WORDS, stream), 0);
	EXPECT(cuStreamEndCapture(stream, &graph), 0);
	EXPECT(cuGraphDestroy(graph), 0);
	/* The pause waits for the end of a capture, whose thread goes on until then. */
	give(&w, capture_a_while, memory);
	AWAIT(capturing);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	captured_and_paused = true;
	held_up(&w);
	EXPECT(tms_resume(NULL), 0);
	ended(&w, 0);
	EXPECT(word_of(memory), 5);
	/* A thread that waits at the gate to begin a capture does not capture: neither a resume nor a pause is
	 * refused. */
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	give(&w, begin_and_end, NULL);
	held_up(&w);
	void *other = pausable(SIZE, "u", true);
	EXPECT(tms_pause_gated("u", PATIENCE), 0);
	EXPECT(tms_resume(NULL), 0);
	ended(&w, 0);
	EXPECT(cudaFree(other), 0);
	is_open(memory);
}

static void busy(void)
{
	void *memory = pausable(SIZE, "t", true), *second, *third;
	char words[200];
	EXPECT(cuStreamCreate(&second, 0), 0);
	EXPECT(cuStreamCreate(&third, 1), 0);
	/* A stream that was destroyed since is named like any other. */
	EXPECT(cuMemsetD32Async((uintptr_t)memory, 5, WORDS, second), 0);
	EXPECT(cuStreamDestroy_v2(second), 0);
	EXPECT(cuMemsetD32Async((uintptr_t)memory, 5, WORDS, stream), 0);
	EXPECT(cuLaunchHostFunc(third, wait_at, &door), 0);
	EXPECT(tms_pause_gated(NULL, 0.2), TIMEOUT);
	snprintf(words, sizeof words,
		 "device 0 has not finished within 200ms; the last work given was cuLaunchHostFunc to stream %p, by thread "
		 "%d (gate); nothing has changed",
		 third, getpid());
	says(words);
	is_open(memory);
	sem_post(&door);
	goes_and_comes_back();
	EXPECT(cuLaunchHostFunc(NULL, wait_at, &door), 0);
	times_out("cuLaunchHostFunc to a default stream, by thread ");
	sem_post(&door);
	EXPECT(cuLaunchHostFunc((void *)2, wait_at, &door), 0);
	times_out("cuLaunchHostFunc to a default stream, by thread ");
	sem_post(&door);
	goes_and_comes_back();
	/* If the driver cannot be asked, a thread waits for it, and is left behind. */
	EXPECT(cuLaunchHostFunc(third, wait_at, &door), 0);
	sim_fail("cuCtxRecordEvent", 1, 801);
	times_out("cuLaunchHostFunc to stream ");
	sim_fail("cuCtxRecordEvent", 1, 801);
	EXPECT(tms_pause_gated(NULL, 0.2), TIMEOUT);
	sem_post(&door);
	sim_fail("cuCtxRecordEvent", 1, 801);
	goes_and_comes_back();
	is_open(memory);
}

/* A callback waits for a lock that a held-up thread holds. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool locked;

static void lock_once(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	pthread_mutex_unlock(&lock);
}

static _Atomic bool go_on = true;

static int fill_under_lock(void *target)
{
	int code = 0;
	pthread_mutex_lock(&lock);
	locked = true;
	while (go_on && code == 0)
		code = fill_words(target);
	pthread_mutex_unlock(&lock);
	return code;
}

/* Fills under the lock until a call has been held up. */
static int fill_until_held(void *target)
{
	int code = 0;
	bool was = false;
	pthread_mutex_lock(&lock);
	locked = true;
	while (!was && code == 0) {
		struct timespec before, after;
		clock_gettime(CLOCK_MONOTONIC, &before);
		code = fill_words(target);
		clock_gettime(CLOCK_MONOTONIC, &after);
		was = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 > 200;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

/* Like callback, but the thread releases the lock soon: all threads are released for a moment, and the pause finds
 * another moment. */
static void another_moment(void)
{
	void *memory = pausable(SIZE, "t", true), *apart;
	struct worker w;
	EXPECT(cuStreamCreate(&apart, 1), 0);
	give(&w, fill_until_held, memory);
	AWAIT(locked);
	EXPECT(cuLaunchHostFunc(apart, lock_once, NULL), 0);
	EXPECT(tms_pause_gated(NULL, 20), 0);
	EXPECT(tms_resume(NULL), 0);
	ended(&w, 0);
	is_open(memory);
}

static void callback(void)
{
	void *memory = pausable(SIZE, "t", true), *apart;
	struct worker w;
	EXPECT(cuStreamCreate(&apart, 1), 0);
	give(&w, fill_under_lock, memory);
	AWAIT(locked);
	EXPECT(cuLaunchHostFunc(apart, lock_once, NULL), 0);
	/* On a busy machine the worker itself may be late inside its call; the pause then names it. */
	double seconds = 0.3;
	do {
		EXPECT(tms_pause_gated(NULL, seconds), TIMEOUT);
		seconds *= 2;
	} while (strstr(tms_last_error(), "has not come back from cuMemsetD32_v2"));
	says("has not finished within ");
	says("cuLaunchHostFunc to stream ");
	CHECK(!w.done);
	go_on = false;
	ended(&w, 0);
	EXPECT(cuStreamSynchronize(apart), 0);
	goes_and_comes_back();
	is_open(memory);
}

static void *nested_target;
static _Atomic int nested_calls;

static void on_signal(int number)
{
	(void)number;
	cuMemsetD32Async((uintptr_t)nested_target, 9, WORDS, stream);
	nested_calls++;
}

static struct worker copier;

static void *disturb(void *unused)
{
	usleep(100000);
	EXPECT(pthread_kill(copier.thread, SIGUSR1), 0);
	AWAIT(nested_calls >= 1);
	sem_post(&door);
	return unused;
}

/* A handler gives the device work in the middle of a call for which the pause waits, and in a thread that is held
 * up. */
static void nested(void)
{
	pthread_t thread;
	nested_target = pausable(SIZE, "t", true);
	signal(SIGUSR1, on_signal);
	await_call("calls:cuMemcpyHtoD");
	give(&copier, copy_slowly, nested_target);
	is_called();
	start(&thread, disturb, NULL);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	EXPECT(nested_calls, 1);
	join(thread);
	EXPECT(tms_resume(NULL), 0);
	ended(&copier, 0);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	give(&copier, fill_words, nested_target);
	held_up(&copier);
	EXPECT(pthread_kill(copier.thread, SIGUSR1), 0);
	held_up(&copier);
	EXPECT(nested_calls, 1); /* the handler is held up too */
	EXPECT(tms_resume(NULL), 0);
	ended(&copier, 0);
	AWAIT(nested_calls >= 2);
	goes_and_comes_back();
	is_open(nested_target);
}

/* The gate does not concern a child. */
static void forked(void)
{
	void *memory = pausable(SIZE, "t", true);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	for (int how = 0; how < 2; how++) {
		pid_t child = how ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
		if (child == 0) {
			alarm(120);
			fill_words(memory); /* whatever the driver returns */
			cuStreamBeginCapture_v2(stream, 2);
			_exit(0);
		}
		EXPECT(code_of(child), 0);
	}
	struct worker w;
	give(&w, fill_words, memory);
	held_up(&w);
	EXPECT(tms_resume(NULL), 0);
	ended(&w, 0);
}

static int fill_to_be_cancelled(void *target)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	return fill_words(target);
}

static int wait_to_be_cancelled(void *unused)
{
	(void)unused;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	while (cuLaunchHostFunc(stream, wait_at, &door) == 0)
		cuMemcpyHtoD_v2((uintptr_t)nested_target, "1234", 4);
	return 0;
}

static pthread_key_t last_words;

static void fill_at_the_end(void *target)
{
	EXPECT(fill_words(target), 0);
	if (word_of(target) != 6)
		pthread_setspecific(last_words, target);
	EXPECT(cuMemsetD32_v2((uintptr_t)target, 6, WORDS), 0);
}

static void *end_working(void *target)
{
	EXPECT(cudaFree(NULL), 0);
	EXPECT(pthread_setspecific(last_words, target), 0);
	EXPECT(fill_words(target), 0);
	return NULL;
}

/* A thread that ends does no harm, wherever it ends. */
static void cancelled(void)
{
	void *memory = nested_target = pausable(SIZE, "t", true);
	struct worker w[100];
	EXPECT(pthread_key_create(&last_words, fill_at_the_end), 0);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	for (int i = 0; i < 100; i++)
		give(&w[i], fill_to_be_cancelled, memory);
	held_up(&w[99]);
	for (int i = 0; i < 100; i++)
		EXPECT(pthread_cancel(w[i].thread), 0);
	for (int i = 0; i < 100; i++)
		join(w[i].thread);
	give(&w[0], fill_words, memory); /* reuses one of their marks */
	held_up(&w[0]);
	EXPECT(tms_resume(NULL), 0);
	ended(&w[0], 0);
	is_open(memory);
	for (int i = 0; i < 200; i++)
		on_a_thread(end_working, memory);
	goes_and_comes_back();
	/* A thread ends inside a call: the work that it gave the device remains, and the pause waits for that, not for
	 * the thread. */
	await_call("calls:cuMemcpyHtoD");
	give(&w[0], wait_to_be_cancelled, NULL);
	is_called();
	EXPECT(pthread_cancel(w[0].thread), 0);
	join(w[0].thread);
	times_out("device 0 has not finished");
	_exit(0); /* a thread has ended inside the simulator */
}

static void tags(void)
{
	void *a = pausable(SIZE, "a", true), *b = pausable(SIZE, "b", true), *own = pausable(SIZE, "own", true);
	struct worker w;
	EXPECT(tms_pause("own"), 0);
	EXPECT(tms_pause_gated("a", PATIENCE), 0);
	EXPECT(tms_pause_gated("b", PATIENCE), 0);
	give(&w, fill_words, a);
	held_up(&w);
	EXPECT(tms_resume("a"), 0);
	held_up(&w);
	EXPECT(tms_resume("own"), 0);
	held_up(&w);
	EXPECT(tms_pause("own"), 0);
	EXPECT(tms_resume("b"), 0);
	ended(&w, 0); /* memory that the program itself has paused stops no thread */
	is_open(b);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	give(&w, fill_words, a);
	EXPECT(tms_resume("a"), 0);
	held_up(&w);
	EXPECT(cudaFree(b), 0); /* the last such memory */
	ended(&w, 0);
	EXPECT(tms_resume("own"), 0);
	EXPECT(cudaFree(own), 0);
	is_open(a);
	/* A reset of the device leaves no memory paused. */
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	EXPECT(cudaDeviceReset(), 0);
	is_open(pausable(SIZE, "a", true));
}

static void failing(void)
{
	static const struct {
		const char *function;
		int code;
	} calls[] = {{"cuCtxRecordEvent", 999}, {"cuEventQuery", 999},	 {"cuEventCreate", 2},
		     {"cuMemUnmap", 999},	{"cuMemHostUnregister", 999}, {"cuMemHostRegister", 304},
		     {"cuMemcpyDtoHAsync", 999}, {"cuDeviceGetCount", 3},  {"cuCtxPushCurrent", 201}};
	void *memory = pausable(SIZE, "t", true);
	struct worker w;
	fill(memory, SIZE, 3);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		sim_fail(calls[i].function, 1, calls[i].code);
		int code = tms_pause_gated("t", PATIENCE);
		sim_fail(calls[i].function, 1, 0);
		if (code == 0) /* tried again, or the call was not made */
			EXPECT(tms_resume("t"), 0);
		else
			fprintf(stderr, "%s: %d %s\n", calls[i].function, code, tms_last_error());
		give(&w, (int (*)(void *))cuStreamQuery, NULL);
		ended(&w, 0);
		CHECK(filled(memory, SIZE, 3)); /* checks with copies, which the gate would hold up */
	}
	for (int i = 0; i < 2; i++) { /* one context is gone: the pause finds another moment */
		sim_fail("cuMemUnmap", 1, (int[]){201, 709}[i]);
		EXPECT(tms_pause_gated("t", 60), 0);
		EXPECT(tms_resume("t"), 0);
		CHECK(filled(memory, SIZE, 3));
	}
	EXPECT(tms_pause_gated("t", PATIENCE), 0);
	give(&w, fill_words, memory);
	sim_fail("cuMemCreate", 1, 2);
	EXPECT(tms_resume("t"), 2);
	held_up(&w);
	EXPECT(tms_resume("t"), 0);
	ended(&w, 0);
}

static void *pause_with_patience(void *unused)
{
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	return unused;
}

static void two_at_once(void)
{
	void *memory = pausable(SIZE, "t", true);
	pthread_t first;
	EXPECT(cuLaunchHostFunc(stream, wait_at, &door), 0);
	await_call("calls:cuCtxRecordEvent");
	start(&first, pause_with_patience, NULL);
	is_called();
	times_out("another gated pause has not ended within 200ms; nothing has changed");
	EXPECT(tms_resume(NULL), 0); /* nothing is paused yet: the other pause goes on */
	sem_post(&door);
	join(first);
	struct worker w;
	give(&w, fill_words, memory);
	held_up(&w);
	EXPECT(tms_resume(NULL), 0);
	ended(&w, 0);
}

/* A sandbox without membarrier. */
static void sandboxed(void)
{
	void *memory = pausable(SIZE, "t", true);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof code / sizeof *code, code};
	if (more) { /* one pause has registered the process */
		goes_and_comes_back();
	}
	EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EXPECT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter), 0);
	EXPECT(tms_pause_gated(NULL, 5), NOT_SUPPORTED);
	says("the kernel refuses membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED), without which threads cannot be stopped");
	is_open(memory);
	PAUSE_AND_RESUME("t");
}

static void exported(void)
{
	bool forced = more;
	void *memory = pausable(SIZE, "t", true);
	uint64_t handle = 0;
	int descriptor = -1;
	if (!getenv("TMS_SHAREABLE")) {
		EXPECT(cuMemRetainAllocationHandle(&handle, memory), NOT_SUPPORTED);
		EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
		return;
	}
	EXPECT(cuMemRetainAllocationHandle(&handle, memory), 0);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0); /* a handle alone gives memory to no process */
	EXPECT(cuMemRelease(handle), 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cuMemRetainAllocationHandle(&handle, memory), 0);
	EXPECT(cuMemExportToShareableHandle(&descriptor, handle, 1, 0), 0);
	EXPECT(cuMemRelease(handle), 0);
	EXPECT(tms_pause_gated(NULL, 5), forced ? 0 : NOT_SUPPORTED);
	if (forced)
		EXPECT(tms_resume(NULL), 0);
	else
		says("was exported, and its importers cannot be stopped (TMS_PAUSE_FORCE=1 pauses anyway); nothing has");
	is_open(memory);
	close(descriptor);
	EXPECT(cudaFree(memory), 0);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
}

/* The program may have taken any number of handles and given away any amount of memory before: here more than there
 * once was room for. */
static void lent_before(void)
{
	bool by_range = more;
	enum { OTHERS = 1100 };
	void *others = pausable(SIZE, "t", true), *memory = pausable(SIZE, "t", true);
	uint64_t handle = 0;
	int descriptor = -1;
	for (int i = 0; i < OTHERS; i++) {
		if (by_range) {
			EXPECT(cuMemGetHandleForAddressRange(&descriptor, (uintptr_t)others + i, 1, 1, 0), 0);
			continue;
		}
		EXPECT(cuMemRetainAllocationHandle(&handle, others), 0);
		EXPECT(cuMemRelease(handle), 0);
	}
	if (by_range)
		EXPECT(tms_pause_gated(NULL, 5), NOT_SUPPORTED);
	EXPECT(cudaFree(others), 0);
	goes_and_comes_back();
	if (by_range) {
		EXPECT(cuMemGetHandleForAddressRange(&descriptor, (uintptr_t)memory, SIZE, 1, 0), 0);
	} else {
		EXPECT(cuMemRetainAllocationHandle(&handle, memory), 0);
		EXPECT(cuMemRetainAllocationHandle(&handle, memory), 0);
		EXPECT(cuMemRelease(handle), 0); /* it still has another */
		EXPECT(cuMemExportToShareableHandle(&descriptor, handle, 1, 0), 0);
		EXPECT(cuMemRelease(handle), 0);
		close(descriptor);
	}
	EXPECT(tms_pause_gated(NULL, 5), NOT_SUPPORTED);
	says("was exported, and its importers cannot be stopped");
	EXPECT(cudaFree(memory), 0);
	goes_and_comes_back();
	pausable(SIZE, "t", true); /* at the freed addresses, and not exported */
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
}

static void library(void)
{
	void *memory = pausable(SIZE, "t", true);
	goes_and_comes_back();
	void *plugin = dlopen(more, RTLD_NOW);
	CHECK(plugin);
	EXPECT(tms_pause_gated(NULL, 5), NOT_SUPPORTED);
	says("nvshmem_bootstrap_uid.so.3 is loaded, so NVSHMEM is in use");
	is_open(memory);
	EXPECT(dlclose(plugin), 0);
	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
}

static void no_gate(void)
{
	void *memory = pausable(SIZE, "t", true);
	EXPECT(tms_pause_gated("t", 5), NOT_SUPPORTED);
	says(more);
	is_open(memory);
	PAUSE_AND_RESUME("t");
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	more = argc > 2 ? argv[2] : NULL;
	EXPECT(cudaFree(NULL), 0);
	sem_init(&door, 0, 0);
	EXPECT(cuStreamCreate(&stream, 0), 0);
	CHECK(RUN_PART(argv[1], {"basic", basic}, {"inside", inside}, {"captured", captured}, {"busy", busy},
		       {"callback", callback}, {"another moment", another_moment}, {"nested", nested}, {"forked", forked},
		       {"cancelled", cancelled}, {"tags", tags}, {"failing", failing}, {"two at once", two_at_once},
		       {"sandboxed", sandboxed}, {"exported", exported}, {"lent before", lent_before},
		       {"library", library}, {"no gate", no_gate}));
	return 0;
}
