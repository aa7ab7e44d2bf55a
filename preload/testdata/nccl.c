/* A host that uses NCCL, and does what the lines of its standard input say (cmd/tms/nccl_test.go). Its first argument
 * says how it finds NCCL: linked (built with LINKED), handle PATH, default PATH; or local LIBRARY, this file as a
 * library that is linked with NCCL, loaded with RTLD_LOCAL. */
#include "host.h"

struct id {
	char internal[128];
};
typedef struct comm comm;
#define FUNCTIONS(X)                                                                                       \
	X(ncclGroupStart, (void))                                                                          \
	X(ncclGroupEnd, (void))                                                                            \
	X(ncclCommInitRank, (comm **, int, struct id, int))                                                \
	X(ncclCommInitAll, (comm **, int, const int *))                                                    \
	X(ncclCommSplit, (comm *, int, int, comm **, void *))                                              \
	X(ncclCommFinalize, (comm *))                                                                      \
	X(ncclCommDestroy, (comm *))                                                                       \
	X(ncclAllReduce, (const void *, void *, size_t, int, int, comm *, void *))                         \
	X(ncclSend, (const void *, size_t, int, int, comm *, void *))                                      \
	X(ncclCommRegister, (comm *, void *, size_t, void **))                                             \
	X(ncclCommDeregister, (comm *, void *))                                                            \
	X(ncclCommWindowRegister, (comm *, void *, size_t, void **, int))                                  \
	X(ncclCommWindowDeregister, (comm *, void *))                                                      \
	X(ncclGetVersion, (int *))

#ifdef LINKED
#define X(name, parameters) int name parameters;
FUNCTIONS(X)
#undef X
static const struct {
#define X(name, parameters) int(*name) parameters;
	FUNCTIONS(X)
} nccl = {
#undef X
#define X(name, parameters) name,
	FUNCTIONS(X)
#undef X
};
#else
static struct {
#define X(name, parameters) int(*name) parameters;
	FUNCTIONS(X)
#undef X
} nccl;
static void look_up(void *where)
{
#define X(name, parameters)                                                                                \
	nccl.name = (int(*) parameters)dlsym(where, #name);                                                \
	CHECK(nccl.name);
	FUNCTIONS(X)
#undef X
	CHECK(!dlsym(where, "ncclNothing"));
}
#endif

enum { WEIGHTS = 16, CACHE = 8, MOST = 16 };
static void *weights, *cache, *handles[MOST];
static comm *comms[MOST];
static int count, first, handle_count; /* those from first on are used */
static _Atomic bool stop;
static _Atomic long cycles;

static void reduce(void)
{
	EXPECT(nccl.ncclGroupStart(), 0);
	for (int i = first; i < count; i++)
		EXPECT(nccl.ncclAllReduce(weights, weights, 1, 0, 0, comms[i], NULL), 0);
	EXPECT(nccl.ncclGroupEnd(), 0);
	cycles++;
}

static _Atomic int working; /* threads that go on until stop */

static void *reduce_all_the_time(void *unused)
{
	while (!stop)
		reduce();
	working--;
	return unused;
}

static _Atomic bool entered; /* the thread that was started last is inside NCCL */

static void *stay_inside(void *milliseconds)
{
	EXPECT(nccl.ncclGroupStart(), 0);
	entered = true;
	usleep((useconds_t)(uintptr_t)milliseconds * 1000);
	EXPECT(nccl.ncclGroupEnd(), 0);
	return NULL;
}

static void *churn(void *number)
{
	for (int i = 0; !stop; i++) {
		struct id id = {{(char)i, (char)(i >> 8), (char)(uintptr_t)number}};
		comm *own;
		void *handle;
		EXPECT(nccl.ncclCommInitRank(&own, 1, id, 0), 0);
		EXPECT(nccl.ncclAllReduce(NULL, NULL, 0, 0, 0, own, NULL), 0);
		EXPECT(nccl.ncclCommRegister(own, cache, MIB, &handle), 0);
		EXPECT(nccl.ncclCommDeregister(own, handle), 0);
		EXPECT(nccl.ncclAllReduce(NULL, NULL, 0, 0, 0, own, NULL), 0);
		EXPECT(nccl.ncclCommDestroy(own), 0);
	}
	working--;
	return NULL;
}

static void *launch_late(void *milliseconds)
{
	EXPECT(nccl.ncclGroupStart(), 0);
	EXPECT(nccl.ncclAllReduce(weights, weights, 1, 0, 0, comms[0], (void *)1), 0);
	entered = true;
	usleep((useconds_t)(uintptr_t)milliseconds * 1000);
	EXPECT(nccl.ncclGroupEnd(), 0);
	return NULL;
}

static _Atomic int late_code;

static void *reduce_late(void *unused)
{
	late_code = -1;
	late_code = nccl.ncclAllReduce(weights, weights, 1, 0, 0, comms[0], NULL);
	return unused;
}

static void start_detached(void *(*what)(void *), int number)
{
	pthread_t thread;
	start(&thread, what, (void *)(uintptr_t)number);
	pthread_detach(thread);
}

static void work(void *(*what)(void *), int number)
{
	working++;
	start_detached(what, number);
}

static void start_to_enter(void *(*what)(void *), int number)
{
	entered = false;
	start_detached(what, number);
	AWAIT(entered);
}

/* Makes some of a communicator's ranks. */
static void make_ranks(int here, int ranks)
{
	static char last;
	struct id id = {{++last}};
	EXPECT(nccl.ncclGroupStart(), 0);
	for (int i = 0; i < here; i++)
		EXPECT(nccl.ncclCommInitRank(&comms[count + i], ranks, id, i), 0);
	EXPECT(nccl.ncclGroupEnd(), 0);
	count += here;
}

static char answer[2000];

static void answer_code(int code)
{
	snprintf(answer, sizeof answer, "%d %s", code, code ? tms_last_error() : "");
}

static const char *run(char *line)
{
	char *word = strtok(line, " \n"), *rest = strtok(NULL, "\n");
	int number = rest ? atoi(rest) : 0;
	CHECK(word);
	snprintf(answer, sizeof answer, "ok");
	if (strcmp(word, "allocate") == 0) {
		weights = kept_memory(WEIGHTS * MIB, "weights", 1);
		cache = pausable(CACHE * MIB, "cache", false);
	} else if (strcmp(word, "serve") == 0) {
		EXPECT(tms_serve(), 0);
	} else if (strcmp(word, "all") == 0) { /* all on one device */
		static const int zeros[MOST];
		EXPECT(nccl.ncclCommInitAll(&comms[count], number, zeros), 0);
		count += number;
	} else if (strcmp(word, "ranks") == 0) {
		int here, ranks;
		CHECK(sscanf(rest, "%d %d", &here, &ranks) == 2);
		make_ranks(here, ranks);
	} else if (strcmp(word, "device") == 0) {
		EXPECT(cudaSetDevice(number), 0);
	} else if (strcmp(word, "split") == 0) {
		int were = count;
		for (int i = 0; i < were; i++)
			EXPECT(nccl.ncclCommSplit(comms[i], 3, i, &comms[count++], NULL), 0);
#ifndef LINKED
	} else if (strcmp(word, "other") == 0) { /* from now on another NCCL */
		void *library = dlopen(rest, RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		look_up(library);
		first = count;
#endif
	} else if (strcmp(word, "reduce") == 0) {
		reduce();
	} else if (strcmp(word, "send") == 0) { /* on a stream, where the simulated NCCL does nothing */
		EXPECT(nccl.ncclSend(weights, 1, 0, number, comms[0], (void *)1), 0);
	} else if (strcmp(word, "group") == 0) {
		EXPECT(nccl.ncclGroupStart(), 0);
		for (int i = 0; i < number; i++)
			EXPECT(nccl.ncclSend(weights, 1, 0, 1, comms[0], (void *)1), 0);
		EXPECT(nccl.ncclAllReduce(weights, weights, 1, 0, 0, comms[0], (void *)1), 0);
		EXPECT(nccl.ncclGroupEnd(), 0);
	} else if (strcmp(word, "capture") == 0) {
		void *stream, *graph;
		EXPECT(cudaStreamCreate(&stream), 0);
		EXPECT(cudaStreamBeginCapture(stream, 0), 0);
		EXPECT(nccl.ncclAllReduce(cache, weights, 1, 0, 0, comms[0], stream), 0);
		EXPECT(cudaStreamEndCapture(stream, &graph), 0);
		EXPECT(nccl.ncclAllReduce(cache, cache, 1, 0, 0, comms[0], stream), 0);
	} else if (strcmp(word, "work") == 0) {
		stop = false;
		work(reduce_all_the_time, 0);
	} else if (strcmp(word, "launch") == 0) {
		start_to_enter(launch_late, number);
	} else if (strcmp(word, "late") == 0) {
		start_detached(reduce_late, 0);
	} else if (strcmp(word, "code") == 0) {
		snprintf(answer, sizeof answer, "%d", (int)late_code);
	} else if (strcmp(word, "churn") == 0) {
		for (int i = 0; i < 3; i++)
			work(churn, 100 + i);
	} else if (strcmp(word, "calm") == 0) {
		stop = true;
		AWAIT(working == 0); /* the communicators may go then */
	} else if (strcmp(word, "cycles") == 0) {
		snprintf(answer, sizeof answer, "%ld", (long)cycles);
	} else if (strcmp(word, "inside") == 0) {
		start_to_enter(stay_inside, number);
	} else if (strcmp(word, "register") == 0) {
		EXPECT(nccl.ncclCommRegister(comms[0], (char *)weights + number * MIB, number < WEIGHTS ? MIB : 0,
					     &handles[handle_count]), 0);
		handle_count++;
	} else if (strcmp(word, "registers") == 0) { /* that many pieces, never to be deregistered */
		void *handle;
		static char other;
		char *memory = strstr(rest, "other") ? &other : weights;
		for (int i = 0; i < number; i++)
			EXPECT(nccl.ncclCommRegister(comms[0], memory, 1, &handle), 0);
	} else if (strcmp(word, "deregister") == 0) {
		EXPECT(nccl.ncclCommDeregister(comms[0], handles[--handle_count]), 0);
	} else if (strcmp(word, "window") == 0) {
		EXPECT(nccl.ncclGroupStart(), 0);
		EXPECT(nccl.ncclCommWindowRegister(comms[0], weights, MIB, &handles[handle_count], 0), 0);
		EXPECT(nccl.ncclGroupEnd(), 0);
		handle_count++;
	} else if (strcmp(word, "close") == 0) {
		EXPECT(nccl.ncclCommWindowDeregister(comms[0], handles[--handle_count]), 0);
	} else if (strcmp(word, "destroy") == 0) { /* that many, the last first */
		for (int i = 0; i < number; i++) {
			EXPECT(nccl.ncclCommFinalize(comms[--count]), 0);
			EXPECT(nccl.ncclCommDestroy(comms[count]), 0);
		}
	} else if (strcmp(word, "pause") == 0) {
		answer_code(tms_pause(rest));
	} else if (strcmp(word, "resume") == 0) {
		answer_code(tms_resume(rest));
	} else if (strcmp(word, "everything") == 0) {
		answer_code(tms_pause_everything(atof(rest)));
	} else if (strcmp(word, "fork") == 0) { /* a child finds NCCL open, whatever is held in the parent */
		int version;
		pid_t child = fork();
		if (child == 0)
			_exit(nccl.ncclGetVersion(&version) || nccl.ncclGroupStart() || nccl.ncclGroupEnd() ||
			      (count && nccl.ncclAllReduce(NULL, NULL, 0, 0, 0, comms[0], (void *)1)));
		EXPECT(code_of(child), 0);
	} else if (strcmp(word, "export") == 0) {
		static void *own;
		EXPECT(cudaMalloc(&own, MIB), 0);
		EXPECT(cudaIpcGetMemHandle(&(struct handle){{0}}, own), 0);
	} else if (strcmp(word, "stats") == 0) {
		snprintf(answer, sizeof answer, "%d", stats_say("\"everything\":true"));
	} else if (strcmp(word, "check") == 0) {
		CHECK(filled(weights, WEIGHTS * MIB, 1));
	} else if (strcmp(word, "free") == 0) {
		snprintf(answer, sizeof answer, "%zu", free_bytes() / MIB);
	} else {
		CHECK(!"a word that is known");
	}
	return answer;
}

int converse(void);
int converse(void)
{
	char line[5000];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (fgets(line, sizeof line, stdin)) {
		printf("%s\n", run(line));
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "linked";
	if (strcmp(way, "local") == 0) {
		void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
		int (*there)(void) = library ? (int (*)(void))dlsym(library, "converse") : NULL;
		if (!there)
			fprintf(stderr, "%s\n", dlerror());
		CHECK(there && there != converse);
		return there();
	}
#ifndef LINKED
	void *library = dlopen(argv[2], RTLD_NOW | (strcmp(way, "default") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
	CHECK(library);
	look_up(strcmp(way, "default") == 0 ? RTLD_DEFAULT : library);
#endif
	return converse();
}
