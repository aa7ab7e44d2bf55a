/* A host that is steered from outside (control_test.go): it does what the lines of its standard input say, and answers
 * each with a line. */
#include "host.h"

enum { WEIGHTS = 24, CACHE = 8, CHURNERS = 3, FIRST = 3, MOST = 1024 }; /* MiB; threads; descriptors */

static void *weights, *cache, *hog;

static void allocate(void)
{
	weights = pausable(WEIGHTS * MIB, "weights", true);
	cache = pausable(CACHE * MIB, "cache", false);
	fill(weights, WEIGHTS * MIB, 1);
}

/* Threads that allocate all the time. */
static _Atomic bool stop;
static _Atomic long cycles;
static pthread_t churners[CHURNERS], resetter;

static void *churn(void *unused)
{
	while (!stop) {
		void *memory = pausable(3 * MIB, "churn", false);
		EXPECT(cudaFree(memory), 0);
		cycles++;
	}
	return unused;
}

/* Threads that give the device work all the time, on memory of their own, and check what they have written there. They
 * allocate one after another, because threads that allocate at the same time may each make a granule for its small
 * allocation, and tests count the memory. */
static void *work(void *unused)
{
	static pthread_mutex_t allocating = PTHREAD_MUTEX_INITIALIZER;
	EXPECT(pthread_mutex_lock(&allocating), 0);
	unsigned *memory = pausable(MIB, "working", true);
	EXPECT(pthread_mutex_unlock(&allocating), 0);
	for (unsigned i = 0; !stop; i++, cycles++) {
		unsigned read = ~i;
		EXPECT(cudaMemset(memory + 1, (int)(i & 0xff), 64), 0);
		EXPECT(cudaMemcpy(memory, &i, sizeof i, 1), 0);
		EXPECT(cudaMemcpy(&read, memory, sizeof read, 2), 0);
		EXPECT(read, i);
		EXPECT(cudaMemcpy(&read, memory + 16, sizeof read, 2), 0);
		EXPECT(read, (i & 0xff) * 0x01010101u);
	}
	EXPECT(cudaFree(memory), 0);
	return unused;
}

int cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *);

/* Threads that ask the device all the time whether it is done, by every call that does so. */
static void *poll_device(void *unused)
{
	void *stream, *first, *last;
	unsigned char *memory = pausable(MIB, "polling", true), read = 0;
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaEventCreate(&first), 0);
	EXPECT(cudaEventCreate(&last), 0);
	EXPECT(cudaEventRecord(first, stream), 0);
	EXPECT(cudaMemsetAsync(memory, 42, MIB, stream), 0);
	EXPECT(cudaEventRecord(last, stream), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	for (; !stop; cycles++) {
		float milliseconds;
		size_t available, total;
		EXPECT(cudaStreamQuery(stream), 0);
		EXPECT(cudaStreamSynchronize(stream), 0);
		EXPECT(cudaEventQuery(last), 0);
		EXPECT(cudaEventSynchronize(last), 0);
		EXPECT(cudaEventElapsedTime(&milliseconds, first, last), 0);
		EXPECT(cudaDeviceSynchronize(), 0);
		EXPECT(cudaMemGetInfo(&available, &total), 0);
	}
	EXPECT(cudaMemcpy(&read, memory + MIB - 1, 1, 2), 0);
	EXPECT(read, 42);
	EXPECT(cudaFree(memory), 0);
	return unused;
}

/* Closes all descriptors, as a daemon does; then the host's files get the next numbers. */
static void close_all(void)
{
	for (int fd = FIRST; fd < MOST; fd++)
		if (!is_device(fd))
			close(fd);
	for (int fd = FIRST, opened; fd < 20; fd++) {
		while (is_device(fd))
			fd++;
		EXPECT((opened = open("/dev/null", O_RDWR)), fd);
	}
	for (int fd = FIRST; fd < 20; fd++)
		if (!is_device(fd))
			EXPECT(close(fd), 0);
}

/* A lock of the process on a file ends when the process closes any descriptor of it. */
static int lock_file(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	EXPECT(fcntl(fd, F_SETLK, &whole), 0);
	return fd;
}

static bool is_locked(const char *path)
{
	pid_t child = fork();
	if (child == 0) {
		struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		_exit(fcntl(open(path, O_RDWR), F_SETLK, &whole) == 0);
	}
	return code_of(child) == 0;
}

static int in_child(void)
{
	pid_t child = fork();
	if (child == 0) {
		int code = tms_serve();
		if (threads() != 1)
			_exit(100);
		exit(code);
	}
	return code_of(child);
}

int cudaMallocManaged(void **, size_t, unsigned);

static void *opened; /* another process's export */
static int open_other(const char *hexadecimal)
{
	struct handle handle;
	for (size_t i = 0; i < sizeof handle.bytes; i++)
		CHECK(sscanf(hexadecimal + 2 * i, "%2hhx", (unsigned char *)&handle.bytes[i]) == 1);
	return cudaIpcOpenMemHandle(&opened, handle, 1);
}

/* Memory that can be exported, and the descriptor that it becomes. */
static uint64_t exported_handle;
static uintptr_t exported_at;
static int exported(void)
{
	int fd;
	EXPECT(cuMemCreate(&exported_handle, 2 * MIB, &exportable, 0), 0);
	EXPECT(cuMemExportToShareableHandle(&fd, exported_handle, POSIX_FD, 0), 0);
	return fd;
}

/* Adds or removes a holder of that memory. */
static int hold_exported(const char *how)
{
	__typeof__(cuMemAddressReserve) *reserve = simulator("cuMemAddressReserve");
	if (strcmp(how, "map") == 0)
		return reserve(&exported_at, 2 * MIB, 0, 0, 0) || cuMemMap(exported_at, 2 * MIB, 0, exported_handle, 0);
	if (strcmp(how, "unmap") == 0)
		return cuMemUnmap(exported_at, 2 * MIB);
	if (strcmp(how, "retain") == 0)
		return cuMemRetainAllocationHandle(&exported_handle, (void *)exported_at);
	CHECK(strcmp(how, "release") == 0);
	return cuMemRelease(exported_handle);
}

static void multicast(void)
{
	const struct multicast properties = {1, 2 * MIB, 0, 0};
	uint64_t handle;
	EXPECT(cuMulticastCreate(&handle, &properties), 0);
	EXPECT(cuMemRelease(handle), 0);
}

/* Exports a memory pool as a descriptor, or imports one from it, by the function of this name. */
static int share_pool(const char *name, const char *path)
{
	void *pool, *function = dlsym(RTLD_DEFAULT, name);
	int fd;
	if (path) {
		CHECK((fd = open(path, O_RDWR)) >= 0);
		EXPECT(((int (*)(void **, void *, int, unsigned long long))function)(&pool, (void *)(intptr_t)fd, 1, 0), 0);
		return fd;
	}
	struct {
		int type, handles, where, device;
		unsigned char rest[72];
	} properties = {1, 1, 1, 0, {0}};
	EXPECT(((int (*)(void **, void *))dlsym(RTLD_DEFAULT, "cudaMemPoolCreate"))(&pool, &properties), 0);
	EXPECT(((int (*)(int *, void *, int, unsigned long long))function)(&fd, pool, 1, 0), 0);
	return fd;
}

static void import(const char *path)
{
	uint64_t handle;
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	EXPECT(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, POSIX_FD), 0);
	close(fd);
}

/* Stays inside a call of CUDA for some milliseconds. */
static void nap(void *milliseconds)
{
	usleep((useconds_t)(uintptr_t)milliseconds * 1000);
}

/* A thread that gives the device work and resets it, all the time: each reset takes the context from other threads. */
static void *reset(void *unused)
{
	for (; !stop; cycles++) {
		unsigned *memory = pausable(MIB, "reset", true), read = 0;
		EXPECT(cudaMemset(memory, 5, MIB), 0);
		EXPECT(cudaMemcpy(&read, memory, sizeof read, 2), 0);
		EXPECT(read, 0x05050505u);
		EXPECT(cudaLaunchHostFunc(NULL, nap, (void *)1), 0); /* a pause and the reset await it, then go on at once */
		EXPECT(cudaDeviceReset(), 0);
	}
	return unused;
}

static pthread_t busy_thread;
static void *own; /* memory that is not pausable */

static void *busy(void *milliseconds)
{
	void *stream;
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaLaunchHostFunc(stream, nap, milliseconds), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	EXPECT(cudaStreamDestroy(stream), 0);
	return NULL;
}

/* The device waits for a lock that a thread has until it has been held at the gate for a moment. */
static pthread_mutex_t tangle = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool tangled;

static void lock_once(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&tangle);
	pthread_mutex_unlock(&tangle);
}

static void *entangle(void *unused)
{
	unsigned *memory = pausable(MIB, "tangle", true);
	pthread_mutex_lock(&tangle);
	tangled = true;
	for (struct timespec before, after; tangled;) {
		clock_gettime(CLOCK_MONOTONIC, &before);
		EXPECT(cudaMemset(memory, 5, MIB), 0);
		clock_gettime(CLOCK_MONOTONIC, &after);
		long long took = (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec;
		tangled = took < 500000000;
	}
	pthread_mutex_unlock(&tangle);
	return unused;
}

static void *captured;

/* Memory of the process alone, full of numbers that are drawn. */
static uint64_t *numbers, drawn = 1;
static size_t count_of_numbers;

static void draw_numbers(size_t first, size_t count)
{
	for (size_t i = first; i < first + count; i++) {
		drawn = drawn * 6364136223846793005u + 1442695040888963407u;
		numbers[i] = drawn;
	}
}

static uint64_t sum(void)
{
	uint64_t all = 0;
	for (size_t i = 0; i < count_of_numbers; i++)
		all = all * 31 + numbers[i];
	return all;
}

static _Atomic int children;

static void count_child(int signal)
{
	(void)signal;
	children++;
}

static char answer[2000];

static void answer_code(int code)
{
	snprintf(answer, sizeof answer, "%d %s", code, code ? tms_last_error() : "");
}

static void answer_number(long number)
{
	snprintf(answer, sizeof answer, "%ld", number);
}

static const char *run(char *line, char *const *argv)
{
	char *word = strtok(line, " \n"), *rest = strtok(NULL, "\n");
	CHECK(word);
	snprintf(answer, sizeof answer, "ok");
	if (strcmp(word, "allocate") == 0)
		allocate();
	else if (strcmp(word, "serve") == 0) {
		answer_code(tms_serve());
	} else if (strcmp(word, "pause") == 0)
		EXPECT(tms_pause(rest), 0);
	else if (strcmp(word, "resume") == 0)
		EXPECT(tms_resume(rest), 0);
	else if (strcmp(word, "everything") == 0) {
		int code = tms_pause_everything(atof(rest));
		snprintf(answer, sizeof answer, "%d %llu %s", code, (unsigned long long)tms_last_bytes(),
			 code ? tms_last_error() : "");
	} else if (strcmp(word, "again") == 0) { /* a resume that may fail */
		answer_code(tms_resume(NULL));
	} else if (strcmp(word, "within") == 0) { /* the same, within the seconds */
		int code = tms_resume_within(NULL, atof(rest));
		snprintf(answer, sizeof answer, "%d %s", code, code ? tms_last_error() : "");
	} else if (strcmp(word, "own") == 0) {
		EXPECT(cudaMalloc(&own, (size_t)atoi(rest) * MIB), 0);
		EXPECT(cudaMemset(own, 7, MIB), 0);
	} else if (strcmp(word, "owned") == 0) {
		unsigned char byte = 0;
		EXPECT(cudaMemcpy(&byte, own, 1, 2), 0);
		answer_number(byte);
	} else if (strcmp(word, "lend") == 0) { /* in place of own */
		own = pausable((size_t)atoi(rest) * MIB, "lent", true);
		EXPECT(cudaMemset(own, 7, MIB), 0);
	} else if (strcmp(word, "write") == 0) {
		EXPECT(cudaMemset(own, atoi(rest), MIB), 0);
	} else if (strcmp(word, "unseen") == 0) { /* like memory that the driver takes for itself */
		uintptr_t unseen;
		EXPECT(((int (*)(uintptr_t *, size_t))simulator("cuMemAlloc_v2"))(&unseen, (size_t)atoi(rest) * MIB), 0);
	} else if (strcmp(word, "export") == 0) {
		struct handle handle;
		EXPECT(cudaIpcGetMemHandle(&handle, own), 0);
		for (size_t i = 0; i < sizeof handle.bytes; i++)
			sprintf(answer + 2 * i, "%02x", (unsigned char)handle.bytes[i]);
	} else if (strcmp(word, "open") == 0) { /* another process's export */
		unsigned char byte;
		EXPECT(open_other(rest), 0);
		EXPECT(cudaMemcpy(&byte, opened, 1, 2), 0);
		EXPECT(byte, 7);
		EXPECT(cudaIpcCloseMemHandle(opened), 0);
	} else if (strcmp(word, "borrow") == 0) { /* and keep it open, or fail */
		answer_code(open_other(rest));
	} else if (strcmp(word, "read") == 0) { /* the borrowed memory */
		unsigned char byte = 0;
		int code = cudaMemcpy(&byte, opened, 1, 2);
		snprintf(answer, sizeof answer, "%d %d", code, byte);
	} else if (strcmp(word, "return") == 0) {
		EXPECT(cudaIpcCloseMemHandle(opened), 0);
	} else if (strcmp(word, "share") == 0) {
		answer_number(exported());
	} else if (strcmp(word, "exported") == 0) {
		answer_number(hold_exported(rest));
	} else if (strcmp(word, "forget") == 0) {
		EXPECT(close(atoi(rest)), 0);
	} else if (strcmp(word, "import") == 0) {
		import(rest);
	} else if (strcmp(word, "pool") == 0) {
		char *name = strtok(rest, " ");
		answer_number(share_pool(name, strtok(NULL, " ")));
	} else if (strcmp(word, "multicast") == 0) {
		multicast();
	} else if (strcmp(word, "managed") == 0) {
		unsigned char *managed;
		EXPECT(cudaMallocManaged((void **)&managed, MIB, 1), 0);
		managed[MIB - 1] = 7;
		EXPECT(cudaFree(managed), 0);
	} else if (strcmp(word, "busy") == 0) {
		start(&busy_thread, busy, (void *)(uintptr_t)atoi(rest));
		pthread_detach(busy_thread);
	} else if (strcmp(word, "entangle") == 0) {
		pthread_t thread;
		void *apart;
		EXPECT(cuStreamCreate(&apart, 1), 0);
		start(&thread, entangle, NULL);
		pthread_detach(thread);
		while (!tangled)
			usleep(1000);
		EXPECT(cudaLaunchHostFunc(apart, lock_once, NULL), 0);
	} else if (strcmp(word, "name") == 0) { /* for its threads from now on */
		EXPECT(prctl(PR_SET_NAME, rest), 0);
	} else if (strcmp(word, "vast") == 0) { /* GiB without contents */
		pausable((size_t)atoi(rest) << 30, "vast", true);
	} else if (strcmp(word, "launch") == 0) { /* a kernel, whose code is not on the device before */
		snprintf(answer, sizeof answer, "%d", launch_add(cache, 1));
		return answer;
	} else if (strcmp(word, "numbers") == 0) { /* MiB of them */
		count_of_numbers = (size_t)atoi(rest) * (MIB / sizeof *numbers);
		CHECK(numbers = malloc(count_of_numbers * sizeof *numbers));
		draw_numbers(0, count_of_numbers);
	} else if (strcmp(word, "draw") == 0) { /* one percent of them again */
		draw_numbers(count_of_numbers / 3, count_of_numbers / 100);
	} else if (strcmp(word, "sum") == 0) {
		snprintf(answer, sizeof answer, "%llx", (unsigned long long)sum());
	} else if (strcmp(word, "try") == 0) { /* an allocation that may fail, in MiB */
		void *tried = NULL;
		IN_REGION(answer_number(cudaMalloc(&tried, (size_t)atoi(rest) * MIB)));
	} else if (strcmp(word, "more") == 0) {
		fill(pausable((size_t)atoi(rest) * MIB, "more", true), (size_t)atoi(rest) * MIB, 2);
	} else if (strcmp(word, "capture") == 0) {
		EXPECT(cudaStreamCreate(&captured), 0);
		EXPECT(cudaStreamBeginCapture(captured, 2), 0);
	} else if (strcmp(word, "captured") == 0) { /* the capture ends unbroken */
		void *graph;
		EXPECT(cudaStreamEndCapture(captured, &graph), 0);
		EXPECT(cudaGraphDestroy(graph), 0);
		EXPECT(cudaStreamDestroy(captured), 0);
	} else if (strcmp(word, "signal") == 0) { /* a handler for SIGCHLD, and how often it ran */
		signal(SIGCHLD, count_child);
		answer_number(children);
	} else if (strcmp(word, "ignore") == 0) { /* children reap themselves */
		signal(SIGCHLD, SIG_IGN);
	} else if (strcmp(word, "stats") == 0) {
		answer_number(stats_say("\"everything\":true"));
	} else if (strcmp(word, "check") == 0)
		CHECK(filled(weights, WEIGHTS * MIB, 1));
	else if (strcmp(word, "dead") == 0) /* the weights are, for the next pause */
		EXPECT(tms_live(weights, WEIGHTS * MIB, NULL, 0), 0);
	else if (strcmp(word, "fill") == 0) /* the cache, which has no backup */
		fill(cache, CACHE * MIB, 2);
	else if (strcmp(word, "filled") == 0)
		CHECK(filled(cache, CACHE * MIB, 2));
	else if (strcmp(word, "free") == 0)
		answer_number((long)(free_bytes() / MIB));
	else if (strcmp(word, "device") == 0) /* for what it allocates from now on */
		EXPECT(cudaSetDevice(atoi(rest)), 0);
	else if (strcmp(word, "calls") == 0)
		answer_number((long)sim_stat(rest));
	else if (strcmp(word, "fail") == 0) { /* the nth call from now of a function of the driver, with a code; or none */
		char *name = rest ? strtok(rest, " ") : NULL;
		sim_clear_failures();
		if (name) {
			int nth = atoi(strtok(NULL, " "));
			char *code = strtok(NULL, " ");
			sim_fail(name, nth, code ? atoi(code) : 999); /* -1 kills the process, and with -2 the call stands */
		}
	} else if (strcmp(word, "fired") == 0)
		answer_number((long)((uint64_t(*)(void))simulator("cudasim_failures_fired"))());
	else if (strcmp(word, "hog") == 0)
		EXPECT(cudaMalloc(&hog, free_bytes()), 0);
	else if (strcmp(word, "unhog") == 0)
		EXPECT(cudaFree(hog), 0);
	else if (strcmp(word, "descriptors") == 0)
		answer_number(descriptors());
	else if (strcmp(word, "threads") == 0)
		answer_number(threads());
	else if (strcmp(word, "close") == 0)
		close_all();
	else if (strcmp(word, "lock") == 0)
		lock_file(rest);
	else if (strcmp(word, "locked") == 0)
		CHECK(is_locked(rest));
	else if (strcmp(word, "load") == 0) /* a library */
		CHECK(dlopen(rest, RTLD_NOW));
	else if (strcmp(word, "limit") == 0)
		EXPECT(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)atoi(rest), MOST}), 0);
	else if (strcmp(word, "fork") == 0)
		answer_number(in_child());
	else if (strcmp(word, "child") == 0) { /* that goes with this process */
		pid_t parent = getpid();
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			while (getppid() == parent)
				pause();
			_exit(0);
		}
	} else if (strcmp(word, "daemon") == 0) {
		if (fork() != 0)
			_exit(0); /* without exit handlers */
		CHECK(setsid() > 0);
		answer_number(getpid());
	} else if (strcmp(word, "exec") == 0)
		execv("/proc/self/exe", argv);
	else if (strcmp(word, "churn") == 0)
		start_all(churners, CHURNERS, churn);
	else if (strcmp(word, "work") == 0)
		start_all(churners, CHURNERS, work);
	else if (strcmp(word, "poll") == 0)
		start_all(churners, CHURNERS, poll_device);
	else if (strcmp(word, "reset") == 0) { /* weights and cache are lost */
		weights = cache = NULL;
		start(&resetter, reset, NULL);
	} else if (strcmp(word, "settle") == 0) {
		stop = true;
		join(resetter);
	} else if (strcmp(word, "cycles") == 0)
		answer_number(cycles);
	else if (strcmp(word, "calm") == 0) {
		stop = true;
		join_all(churners, CHURNERS);
		answer_number(cycles);
	} else
		CHECK(!"a word that is known");
	return answer;
}

int main(int argc, char **argv)
{
	(void)argc;
	char line[5000];
	if (!getenv("STEERED_STAYS")) /* a restored one has another parent, which ends */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdin, NULL, _IONBF, 0); /* so that nothing is read ahead and lost by an exec */
	while (fgets(line, sizeof line, stdin)) {
		printf("%s\n", run(line, argv));
		fflush(stdout);
	}
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cudaFree(cache), 0);
	EXPECT(cudaFree(weights), 0);
	return 0;
}
