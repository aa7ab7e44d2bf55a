/* Two processes have each other's memory open (cudaIpcGetMemHandle, cudaIpcOpenMemHandle), as custom all-reduces do:
 * they are paused and resumed together, a hundred times; one alone; one dies, frees, or opens what it may not. Called
 * as: ipc WHAT */
#include "pair.h"

enum { SIZE = 3 << 20, SMALL = 12 << 10, LAZY = 1, RANGE_START = 11, NOT_READY = 600 };

static const char *what; /* is done */

struct buffers {
	char *big, *small, *other_big, *other_small;
	char *beside[2]; /* before and behind big, of its size; not shared */
};

static struct handle handle_of(void *pointer)
{
	struct handle handle;
	EXPECT(cudaIpcGetMemHandle(&handle, pointer), 0);
	return handle;
}

static char *opened(struct handle handle)
{
	void *pointer = NULL;
	EXPECT(cudaIpcOpenMemHandle(&pointer, handle, LAZY), 0);
	CHECK(pointer);
	return pointer;
}

static struct buffers exchanged(const char *tag)
{
	struct buffers b = {.beside = {pausable(SIZE, tag, true)}};
	b.big = pausable(SIZE, tag, true);
	b.beside[1] = pausable(SIZE, tag, true);
	for (unsigned i = 0; i < 2; i++)
		fill(b.beside[i], SIZE, i);
	size_t apart = sim_stat("handles");
	PAUSE_AND_RESUME(tag);
	CHECK(sim_stat("handles") < apart); /* they share an extent */
	(void)pausable(SMALL, tag, true); /* so that the next does not begin its granule */
	b.small = pausable(SMALL, tag, true);
	struct handle handles[2] = {handle_of(b.big), handle_of(b.small)}, others[2];
	tell(channel, handles, sizeof handles);
	hear(channel, others, sizeof others);
	b.other_big = opened(others[0]);
	b.other_small = opened(others[1]);
	CHECK(opened(others[0]) == b.other_big);
	EXPECT(cudaIpcCloseMemHandle(b.other_big), 0); /* it is still open */
	return b;
}

static void write_all(struct buffers b, unsigned seed)
{
	fill(b.big, SIZE, 2 * seed + (unsigned)rank);
	fill(b.small, SMALL, 2 * seed + (unsigned)rank + 1000000);
}

static bool unmoved(struct buffers b)
{
	return filled(b.beside[0], SIZE, 0) && filled(b.beside[1], SIZE, 1);
}

static bool reads(char *big, char *small, unsigned seed, int whose)
{
	return filled(big, SIZE, 2 * seed + (unsigned)whose) && filled(small, SMALL, 2 * seed + (unsigned)whose + 1000000);
}

static void close_all(struct buffers b)
{
	CHECK(unmoved(b));
	EXPECT(cudaIpcCloseMemHandle(b.other_big), 0);
	EXPECT(cudaIpcCloseMemHandle(b.other_small), 0);
	EXPECT(cudaIpcCloseMemHandle(b.other_small), 1); /* no longer open */
	meet();
}

static void mutual(void)
{
	struct buffers b = exchanged("communication");
	struct random r = {(uint64_t)getpid() * 2654435761u + 1};
	char *copy = pausable(SIZE, "other", false);
	void *stream = NULL;
	EXPECT(cudaStreamCreate(&stream), 0);
	void *graph = captured_copy(stream, copy, b.other_big, SIZE);
	size_t apart = sim_stat("handles") + 2; /* shared memory has an extent of its own, which parts its neighbours */
	int open_before = descriptors();
	for (unsigned cycle = 0; cycle < (unsigned)often(100, 16); cycle++) {
		write_all(b, cycle);
		meet();
		EXPECT(cudaGraphLaunch(graph, stream), 0);
		EXPECT(cudaStreamSynchronize(stream), 0);
		CHECK(filled(copy, SIZE, 2 * cycle + (unsigned)!rank));
		CHECK(reads(b.other_big, b.other_small, cycle, !rank));
		if (cycle % 4 == 3) { /* the other process keeps what one writes */
			meet();
			fill(b.other_small, SMALL, 2 * cycle + (unsigned)!rank + 1000000 - 7);
		}
		meet();
		usleep(draw(&r, 3000));
		EXPECT(tms_pause(cycle % 2 ? "communication" : NULL), 0);
		meet();
		EXPECT(sim_stat("handles"), cycle % 2); /* of copy */
		usleep(draw(&r, 3000));
		EXPECT(tms_resume(NULL), 0);
		EXPECT(sim_stat("handles"), apart);
		CHECK(unmoved(b));
		if (cycle % 4 == 3)
			CHECK(filled(b.small, SMALL, 2 * cycle + (unsigned)rank + 1000000 - 7));
		else
			CHECK(reads(b.big, b.small, cycle, rank));
	}
	meet();
	no_more_descriptors_than(open_before);
	close_all(b);
}

/* An owner of memory that another process has mapped cannot pause alone; the other can. */
static void lone(void)
{
	struct buffers b = exchanged("communication");
	write_all(b, 1);
	meet();
	if (rank == 0) {
		char words[64];
		snprintf(words, sizeof words, "process %d,", (int)other_process);
		EXPECT(tms_pause_within("communication", 0.1), NOT_READY);
		CHECK(strstr(tms_last_error(), words) && strstr(tms_last_error(), "nothing has changed"));
		CHECK(reads(b.big, b.small, 1, 0) && reads(b.other_big, b.other_small, 1, 1));
		EXPECT(tms_pause("another"), 0);
		meet(); /* the other pauses */
		meet();
		EXPECT(tms_pause_within("communication", 60), 0);
		EXPECT(sim_stat("handles"), 0);
		meet(); /* the other's resume fails */
		meet();
		EXPECT(tms_resume("communication"), 0);
		CHECK(reads(b.big, b.small, 1, 0) && reads(b.other_big, b.other_small, 1, 1));
	} else {
		meet();
		/* It cannot come back while the other pauses alone. */
		EXPECT(tms_pause_within("communication", 0.1), NOT_READY); /* 0 has ours mapped */
		meet();
		EXPECT(tms_pause_within("communication", 60), 0);
		meet();
		FAILS(tms_resume_within("communication", 0.1), NOT_READY, "paused where it was allocated");
		CHECK(reads(b.big, b.small, 1, 1)); /* its own is back */
		meet();
		EXPECT(tms_resume("communication"), 0);
		CHECK(reads(b.other_big, b.other_small, 1, 0));
	}
	meet();
	close_all(b);
}

static _Atomic pid_t opener;

static void *open_it(void *handle)
{
	void *memory = NULL;
	opener = (pid_t)syscall(SYS_gettid);
	EXPECT(cudaIpcOpenMemHandle(&memory, *(struct handle *)handle, LAZY), 0);
	return memory;
}

/* A handle is opened while its exporter is paused from outside: the consumer waits as the exporter does. */
static void exporter_stopped(void)
{
	struct handle handle;
	if (rank == 0) {
		char *memory = kept_memory(SIZE, "t", 3);
		handle = handle_of(memory);
		EXPECT(tms_pause_gated("t", 60), 0);
		tell(channel, &handle, sizeof handle);
		meet(); /* the other one waits */
		EXPECT(tms_resume("t"), 0);
		meet();
	} else {
		pthread_t thread;
		void *memory = NULL;
		hear(channel, &handle, sizeof handle);
		start(&thread, open_it, &handle);
		AWAIT(opener && in_call(opener, SYS_clock_nanosleep));
		PAUSE_AND_RESUME(NULL); /* it can be paused itself */
		meet();
		EXPECT(pthread_join(thread, &memory), 0);
		CHECK(filled(memory, SIZE, 3));
		EXPECT(cudaIpcCloseMemHandle(memory), 0);
		meet();
	}
}

/* The owner of the memory frees it, or ends. */
static void gone(void)
{
	bool killed = strcmp(what, "killed") == 0;
	if (rank == 0) {
		char *memory = pausable(SIZE, "t", true);
		struct handle handle = handle_of(memory), second = handle_of(memory);
		fill(memory, SIZE, 1);
		tell(channel, &handle, sizeof handle);
		meet();
		meet();
		if (killed)
			raise(SIGKILL);
		EXPECT(cudaFree(memory), 0);
		tell(channel, &second, sizeof second);
		meet();
		return;
	}
	struct handle handle;
	hear(channel, &handle, sizeof handle);
	char *memory = opened(handle);
	void *second = NULL;
	CHECK(filled(memory, SIZE, 1));
	char *own = kept_memory(SIZE, "t", 2);
	EXPECT(tms_pause(NULL), 0); /* alone: no other process has its memory */
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, SIZE, 1) && filled(own, SIZE, 2));
	meet();
	meet();
	if (killed) {
		other_ends();
		CHECK(filled(memory, SIZE, 1)); /* the driver keeps it */
	} else {
		hear(channel, &handle, sizeof handle);
	}
	EXPECT(cudaIpcOpenMemHandle(&second, handle, LAZY), 0); /* while it is open */
	CHECK(second == memory);
	EXPECT(cudaIpcCloseMemHandle(second), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 400);
	CHECK(strstr(tms_last_error(), killed ? "the process has ended" : "it was freed") &&
	      strstr(tms_last_error(), "cudaIpcCloseMemHandle"));
	CHECK(filled(own, SIZE, 2));
	EXPECT(cudaIpcCloseMemHandle(memory), 0);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(own, SIZE, 2));
	EXPECT(cudaIpcOpenMemHandle(&second, handle, LAZY), 400);
	if (!killed)
		meet();
}

/* Removes the sockets from their directory. */
static void lose_sockets(void)
{
	char command[300];
	meet();
	if (rank == 1) {
		snprintf(command, sizeof command, "rm %s/tms/*.sock", getenv("XDG_RUNTIME_DIR"));
		EXPECT(system(command), 0);
	}
	meet();
}

static void unseen(void)
{
	char *own = pausable(SIZE, "t", true), *other = NULL;
	struct handle handle = handle_of(own);
	tell(channel, &handle, sizeof handle);
	hear(channel, &handle, sizeof handle);
	fill(own, SIZE, (unsigned)rank);
	lose_sockets();
	other = opened(handle);
	CHECK(filled(other, SIZE, (unsigned)!rank));
	lose_sockets();
	EXPECT(tms_pause("t"), 0);
	lose_sockets();
	EXPECT(tms_resume("t"), 0);
	CHECK(filled(other, SIZE, (unsigned)!rank));
	EXPECT(cudaIpcCloseMemHandle(other), 0);
	meet();
}

/* The owner of the memory is stopped while it is to hear that its memory is no longer mapped: it hears of that
 * later. */
static void unheard(void)
{
	struct handle handle;
	if (rank == 0) {
		handle = handle_of(pausable(SIZE, "t", true));
		tell(channel, &handle, sizeof handle);
		meet();
		meet();
		EXPECT(tms_pause("t"), 0);
		meet();
		return;
	}
	hear(channel, &handle, sizeof handle);
	(void)opened(handle);
	meet();
	EXPECT(kill(other_process, SIGSTOP), 0);
	EXPECT(tms_pause("t"), 0);
	while (stats_say("given back in the background"))
		;
	EXPECT(kill(other_process, SIGCONT), 0);
	meet();
	meet(); /* without a call of the library */
}

/* One process of three is stopped, which does not affect what the other two share. */
static void beside_stopped(void)
{
	enum { PIECES = 3 }; /* of the stopped process: each takes a notice of its own */
	char *opened_of[2];
	pid_t pids[2];
	int channels[2];
	for (int i = 0; i < 2; i++) {
		int ends[2];
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		channels[i] = channel = ends[pids[i] == 0];
		close(ends[pids[i] != 0]);
		if (pids[i] > 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int piece = 0; piece < PIECES; piece++) {
			char *memory = pausable(SIZE, "t", true);
			struct handle handle = handle_of(memory);
			fill(memory, SIZE, (unsigned)i);
			tell(channel, &handle, sizeof handle);
		}
		meet();
		if (i == 1) {
			EXPECT(tms_pause("t"), 0);
			meet();
			EXPECT(tms_resume("t"), 0);
			meet();
		}
		for (;;)
			pause();
	}
	for (int i = 0; i < 2; i++) {
		channel = channels[i];
		for (int piece = 0; piece < PIECES; piece++) {
			struct handle handle;
			hear(channel, &handle, sizeof handle);
			opened_of[i] = opened(handle);
		}
		if (i == 0)
			meet();
	}
	EXPECT(kill(pids[0], SIGSTOP), 0);
	meet();
	EXPECT(tms_pause("t"), 0);
	meet();
	EXPECT(tms_trim(), 0);
	meet();
	EXPECT(tms_resume_within("t", 0), 909); /* the stopped process's memory does not come */
	CHECK(filled(opened_of[1], SIZE, 1));
	EXPECT(kill(pids[0], SIGCONT), 0);
	EXPECT(tms_resume("t"), 0);
	CHECK(filled(opened_of[0], SIZE, 0));
}

/* Many processes open one's memory, and all open, pause and resume at once. */
static void crowd(void)
{
	enum { IMPORTERS = 40 };
	static struct {
		_Atomic int step, arrived;
		struct handle handle;
	} *shared;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	bool importer = false;
	for (int i = 0; i < IMPORTERS && !importer; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		importer = child == 0;
	}
	char *memory = NULL;
	if (importer) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		EXPECT(cudaFree(pausable(SMALL, "own", false)), 0);
	} else {
		memory = pausable(SIZE, "t", true);
		shared->handle = handle_of(memory);
		fill(memory, SIZE, 1);
	}
	for (int step = 1; step <= 4; step++) {
		if (importer) {
			shared->arrived++;
			AWAIT(shared->step >= step);
		} else {
			while (shared->arrived < IMPORTERS) {
				EXPECT(waitpid(-1, NULL, WNOHANG), 0);
				usleep(1000);
			}
			shared->arrived = 0;
			shared->step = step;
		}
		if (step == 1 && importer)
			memory = opened(shared->handle);
		else if (step == 2)
			EXPECT(tms_pause_within("t", 60), 0);
		else if (step == 3)
			EXPECT(tms_resume("t"), 0);
		CHECK(step == 1 || step == 2 || filled(memory, SIZE, 1));
	}
	while (importer)
		pause();
}

/* Another process's memory goes away while this process is held up. This process still goes on. */
static _Atomic unsigned worked;
static void *work(void *own)
{
	for (;;) {
		EXPECT(cudaMemset(own, 1, SMALL), 0);
		worked++;
	}
	return NULL;
}

static void lost(void)
{
	struct handle handle;
	if (rank == 0) {
		handle = handle_of(pausable(SIZE, "t", true));
		tell(channel, &handle, sizeof handle);
		meet();
		raise(SIGKILL);
	}
	pthread_t worker;
	char words[64];
	void *own = pausable(SIZE, "own", true), *again = NULL;
	hear(channel, &handle, sizeof handle);
	char *memory = opened(handle);
	start(&worker, work, own);
	EXPECT(tms_pause_gated(NULL, 60), 0);
	unsigned before = worked;
	meet();
	other_ends();
	EXPECT(tms_resume(NULL), 400);
	CHECK(strstr(tms_last_error(), "the process has ended") && strstr(tms_last_error(), "cudaIpcCloseMemHandle"));
	AWAIT(worked != before);
	snprintf(words, sizeof words, "\"imported_lost_bytes\":%zu", 4 * MIB); /* whole granules */
	CHECK(stats_say(words));
	FAILS(cudaIpcOpenMemHandle(&again, handle, LAZY), 400, "is lost; close it (cudaIpcCloseMemHandle)");
	EXPECT(tms_pause_gated(NULL, 60), 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cudaIpcCloseMemHandle(memory), 0);
	CHECK(!stats_say(words));
}

/* The importer's main thread has ended, and the process lives on in other threads. */
static void *survive(void *handle)
{
	char *memory = opened(*(struct handle *)handle);
	char stat[512] = "", path[64];
	snprintf(path, sizeof path, "/proc/%d/stat", (int)getpid());
	while (!strstr(stat, ") Z ")) {
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(stat, sizeof stat, file));
		fclose(file);
	}
	meet();
	meet();
	EXPECT(tms_pause("t"), 0);
	meet(); /* a resume before the other's pause would map the memory again */
	EXPECT(tms_resume("t"), 0);
	CHECK(filled(memory, SIZE, 1));
	meet();
	_exit(0);
}

static void main_ends(void)
{
	static struct handle handle;
	if (rank == 1) {
		pthread_t survivor;
		hear(channel, &handle, sizeof handle);
		start(&survivor, survive, &handle);
		pthread_exit(NULL);
	}
	char *memory = pausable(SIZE, "t", true);
	handle = handle_of(memory);
	fill(memory, SIZE, 1);
	tell(channel, &handle, sizeof handle);
	meet();
	EXPECT(tms_pause_within("t", 0.1), NOT_READY);
	meet();
	EXPECT(tms_pause("t"), 0); /* together with the other */
	meet();
	EXPECT(tms_resume("t"), 0);
	meet();
}

/* The importer is killed. */
static void importer_dies(void)
{
	if (rank == 1) {
		struct handle handle;
		hear(channel, &handle, sizeof handle);
		(void)opened(handle);
		meet();
		for (;;)
			pause();
	}
	char *memory = pausable(SIZE, "t", true);
	struct handle handle = handle_of(memory);
	fill(memory, SIZE, 1);
	tell(channel, &handle, sizeof handle);
	meet();
	EXPECT(tms_pause_within(NULL, 0.05), NOT_READY);
	EXPECT(kill(other_process, SIGKILL), 0);
	other_ends();
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, SIZE, 1));
}

/* Handles that are refused, and what programs ask for before they share. */
static void alone(void)
{
	char *memory = pausable(SIZE, "t", true), *small = pausable(SMALL, "t", true);
	void *found = NULL, *plain = NULL;
	struct handle handle = handle_of(memory + 100), foreign = {{0}}; /* of the whole, like CUDA's */
	uintptr_t base = 0;
	size_t size = 0;
	FAILS(cudaIpcOpenMemHandle(&found, handle, LAZY), 201, "this process itself");
	struct handle later = handle;
	uint64_t start;
	memcpy(&start, later.bytes + 16, sizeof start);
	start++;
	memcpy(later.bytes + 16, &start, sizeof start); /* an earlier process with the same number */
	uint32_t pid = (uint32_t)getppid();
	memcpy(later.bytes + 8, &pid, sizeof pid);
	FAILS(cudaIpcOpenMemHandle(&found, later, LAZY), 400, "the process has ended");
	CHECK(cudaIpcOpenMemHandle(&found, foreign, LAZY) != 0);
	EXPECT(cudaIpcCloseMemHandle(memory), 1);
	EXPECT(cudaIpcGetMemHandle(NULL, memory), 1);
	EXPECT(cudaMalloc(&plain, SIZE), 0);
	EXPECT(cudaIpcGetMemHandle(&foreign, plain), 0);
	CHECK(memcmp(&foreign, "tms-ipc1", 8) != 0);
	EXPECT(cuMemGetAddressRange_v2(&base, &size, (uintptr_t)small + 4000), 0);
	CHECK(base == (uintptr_t)small && size == SMALL);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(cuPointerGetAttribute(&base, RANGE_START, (uintptr_t)memory + 4000), 0);
	CHECK(base == (uintptr_t)memory);
	EXPECT(cudaIpcGetMemHandle(&later, memory), 0);
	CHECK(memcmp(&later, &handle, sizeof handle) == 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cudaFree(memory), 0);
	CHECK(cudaIpcGetMemHandle(&later, memory) != 0);
}

/* The error says what to do. */
static void not_shared(void)
{
	struct handle handle;
	FAILS(cudaIpcGetMemHandle(&handle, pausable(SIZE, "t", false)), 801, "with tms run, or with TMS_SHAREABLE=ipc");
}

static void beside_nccl(void)
{
	void *memory = pausable(SIZE, "t", false);
	if (getenv("NCCL"))
		CHECK(dlopen(getenv("NCCL"), RTLD_NOW));
	for (int i = 0; i < 2; i++) {
		PAUSE_AND_RESUME("t");
	}
	EXPECT(cudaFree(memory), 0);
}

static void as_rank(void)
{
	CHECK(RUN_PART(what, {"mutual", mutual}, {"lone", lone}, {"exporter stopped", exporter_stopped}, {"lost", lost}, {"main_ends", main_ends},
		       {"unheard", unheard}, {"unseen", unseen}, {"freed", gone}, {"killed", gone},
		       {"importer_dies", importer_dies}));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	what = argv[1];
	if (!RUN_PART(what, {"alone", alone}, {"not shared", not_shared}, {"beside nccl", beside_nccl},
		      {"beside stopped", beside_stopped}, {"crowd", crowd}))
		in_two(as_rank, !strcmp(what, "importer_dies") ? 1 : !strcmp(what, "killed") || !strcmp(what, "lost") ? 0 : -1);
	return 0;
}
