/* A rank of a launch that uses NCCL (libnccl.c, with FAKE_NCCL_SHARED), up to ten collectives ahead of or behind the
 * others: it waits for its device only after each tenth.
 *     apart LIBRARY FILE RANK RANKS KIND
 * Kinds: world, one communicator; crossed, two, in the other order on odd ranks; grid, four ranks in rows and columns;
 * pipeline, sends and receives in groups; waiting, three of which the first waits for the last by other means than
 * NCCL; graph, collectives in CUDA graphs; mixed, those and others. FILE is memory that the ranks share. On "stop" rank
 * 0 ends all of them after the same step; "work" prints how many steps there were; after "sleep", which is
 * answered when the rank sleeps, it falls 2 s behind. */
#include "host.h"

#include <poll.h>

enum { MIB_OF_WEIGHTS = 8, MARGIN = 64 };

struct id {
	char internal[128];
};
typedef struct comm comm;
#define FUNCTIONS(X)                                                                                       \
	X(ncclGroupStart, (void))                                                                          \
	X(ncclGroupEnd, (void))                                                                            \
	X(ncclCommInitRank, (comm **, int, struct id, int))                                                \
	X(ncclAllReduce, (const void *, void *, size_t, int, int, comm *, void *))                         \
	X(ncclSend, (const void *, size_t, int, int, comm *, void *))                                      \
	X(ncclRecv, (void *, size_t, int, int, comm *, void *))
static struct {
#define X(name, parameters) int(*name) parameters;
	FUNCTIONS(X)
#undef X
} nccl;

static struct shared {
	_Atomic long last; /* 0: there is none yet */
	_Atomic long told; /* for waiting: the last rank's steps */
} *shared;
static int rank, ranks;
static unsigned char *weights;
static void *stream, *other_stream;
static comm *first, *second;
static void *graph;
static unsigned seed;
static _Atomic long steps;
static _Atomic bool sleeps;

static comm *make(int number, int own, int all)
{
	struct id id = {{(char)number}};
	comm *made;
	EXPECT(nccl.ncclCommInitRank(&made, all, id, own), 0);
	return made;
}

static void reduce(comm *with, void *on)
{
	EXPECT(nccl.ncclAllReduce(weights, weights, 1, 0, 0, with, on), 0);
}

static void own_time(void)
{
	if (rand_r(&seed) % 3 == 0)
		usleep((useconds_t)(rand_r(&seed) % 4000));
}

static void send_and_receive(int to, int from)
{
	EXPECT(nccl.ncclGroupStart(), 0);
	EXPECT(nccl.ncclGroupStart(), 0);
	if (to >= 0 && to < ranks)
		EXPECT(nccl.ncclSend(weights, 1, 0, to, first, stream), 0);
	if (from >= 0 && from < ranks)
		EXPECT(nccl.ncclRecv(weights, 1, 0, from, first, stream), 0);
	EXPECT(nccl.ncclGroupEnd(), 0);
	own_time();
	EXPECT(nccl.ncclGroupEnd(), 0);
}

static void world(void)
{
	reduce(first, stream);
}

static void crossed(void)
{
	reduce(rank % 2 ? second : first, rank % 2 ? other_stream : stream);
	own_time();
	reduce(rank % 2 ? first : second, rank % 2 ? stream : other_stream);
}

static void grid(void)
{
	for (int i = 0; i < 3; i++) {
		reduce(first, stream);
		own_time();
	}
	reduce(second, stream);
}

/* Two batches: each forward, then each back. */
static void pipeline(void)
{
	for (int i = 0; i < 2; i++) {
		send_and_receive(-1, rank - 1);
		send_and_receive(rank + 1, -1);
	}
	for (int i = 0; i < 2; i++) {
		send_and_receive(-1, rank + 1);
		send_and_receive(rank - 1, -1);
	}
	send_and_receive((rank + 1) % ranks, (rank + ranks - 1) % ranks); /* and in a ring */
}

static void waiting(void)
{
	while (rank == 0 && shared->told < steps)
		usleep(100);
	if (first)
		reduce(first, stream);
	own_time();
	if (second)
		reduce(second, stream);
	own_time();
	if (rank == 2)
		shared->told = steps;
}

static void launch(void)
{
	EXPECT(cudaGraphLaunch(graph, stream), 0);
	cudaStreamQuery(stream); /* it makes the simulator run the stream */
}

static void mixed(void)
{
	launch();
	own_time();
	reduce(first, stream);
}

static void capture(void)
{
	void *captured;
	EXPECT(cudaStreamBeginCapture(stream, 2), 0);
	reduce(first, stream);
	reduce(first, stream);
	EXPECT(cudaStreamEndCapture(stream, &captured), 0);
	EXPECT(cudaGraphInstantiate(&graph, captured, 0), 0);
}

static void *answer(void *unused)
{
	char line[100];
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(line, "stop\n") == 0) {
			shared->last = steps + MARGIN; /* no rank has come so far */
		} else {
			if (strcmp(line, "sleep\n") == 0) {
				sleeps = true;
				AWAIT(!sleeps);
			}
			printf("%ld\n", (long)steps);
			fflush(stdout);
		}
	}
	return unused;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*step)(void);
	} kinds[] = {{"world", world},	     {"crossed", crossed}, {"grid", grid},
		     {"pipeline", pipeline}, {"waiting", waiting}, {"graph", launch},
		     {"mixed", mixed}};
	void (*step)(void) = NULL;
	CHECK(argc == 6);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[2], O_RDWR), 0);
	CHECK(shared != MAP_FAILED);
	rank = atoi(argv[3]);
	ranks = atoi(argv[4]);
	seed = (unsigned)rank + 1;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].name, argv[5]) == 0)
			step = kinds[i].step;
	CHECK(step);
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
#define X(name, parameters)                                                                                \
	nccl.name = (int(*) parameters)dlsym(library, #name);                                              \
	CHECK(nccl.name);
	FUNCTIONS(X)
#undef X
	weights = pausable(MIB_OF_WEIGHTS * MIB, "weights", true);
	EXPECT(cudaMemset(weights, 0, MIB_OF_WEIGHTS * MIB), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamCreate(&other_stream), 0);
	if (step == grid) {
		first = make(10 + rank / 2, rank % 2, 2);
		second = make(20 + rank % 2, rank / 2, 2);
	} else if (step == waiting) {
		first = rank < 2 ? make(1, rank, 2) : NULL;
		second = rank > 0 ? make(2, rank - 1, 2) : NULL;
	} else {
		first = make(1, rank, ranks);
		second = make(2, rank, ranks);
	}
	if (step == launch || step == mixed)
		capture();
	EXPECT(tms_serve(), 0);
	puts("ready");
	fflush(stdout);
	pthread_t thread;
	start(&thread, answer, NULL);

	do {
		steps++;
		if (sleeps) {
			sleeps = false;
			sleep(2);
		}
		step();
		EXPECT(cudaMemsetAsync(weights, (int)(steps & 0xff), MIB_OF_WEIGHTS * MIB, stream), 0);
		own_time();
		if (steps % 10 == 0) {
			EXPECT(cudaStreamSynchronize(stream), 0);
			EXPECT(cudaStreamSynchronize(other_stream), 0);
		}
	} while (steps != shared->last);
	EXPECT(cudaStreamSynchronize(stream), 0);
	EXPECT(cudaStreamSynchronize(other_stream), 0);
	unsigned char *read = malloc(MIB_OF_WEIGHTS * MIB);
	EXPECT(cudaMemcpy(read, weights, MIB_OF_WEIGHTS * MIB, 2), 0);
	for (size_t i = 0; i < MIB_OF_WEIGHTS * MIB; i++)
		EXPECT(read[i], steps & 0xff);
	printf("%ld\n", (long)steps);
	fflush(stdout);
	return 0;
}
