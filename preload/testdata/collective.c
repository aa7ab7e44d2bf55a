/* A rank of a launch: in a loop it gives its device a collective, which ends when all ranks have given theirs, and
 * works on pausable memory between two of them. Each rank takes its own time, so that no two are at the same place.
 *     collective FILE RANK RANKS
 * FILE is memory that they share. With COLLECTIVE_SHARES=1 each also opens the next rank's weights, and copies them in
 * every collective. It answers the lines of its standard input: "stop" ends all ranks after the same collective, and
 * prints how many there were. */
#include "host.h"

#include <poll.h>

enum { MOST = 16, WORDS = 1 << 20 };

static struct shared {
	_Atomic long given[MOST]; /* collectives that each rank's device has reached */
	_Atomic long last;	  /* 0: there is none yet */
	_Atomic bool has_handle[MOST];
	struct handle handle[MOST];
} *shared;
static int rank, ranks;

/* The weights of the next rank; NULL if nothing is shared. */
static void *of_next(void *weights)
{
	int next = (rank + 1) % ranks;
	void *opened = NULL;
	if (!getenv("COLLECTIVE_SHARES"))
		return NULL;
	EXPECT(cudaIpcGetMemHandle(&shared->handle[rank], weights), 0);
	shared->has_handle[rank] = true;
	AWAIT(shared->has_handle[next]);
	EXPECT(cudaIpcOpenMemHandle(&opened, shared->handle[next], 1), 0);
	return opened;
}

/* Runs in the stream, and waits for the same collective of all others. */
static void collective(void *number)
{
	shared->given[rank] = (long)number;
	for (int other = 0; other < ranks; other++)
		while (shared->given[other] < (long)number)
			usleep(50);
}

static bool told_to_stop(void)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};
	return poll(&in, 1, 0) > 0;
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int file = open(argv[1], O_RDWR);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(shared != MAP_FAILED);
	rank = atoi(argv[2]);
	ranks = atoi(argv[3]);

	unsigned *weights = pausable(WORDS * sizeof *weights, "weights", true);
	unsigned *cache = pausable(WORDS * sizeof *cache, "cache", false);
	void *stream;
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaMemset(weights, 0, WORDS * sizeof *weights), 0);
	EXPECT(tms_serve(), 0);
	void *next = of_next(weights);
	puts("ready");
	fflush(stdout);

	unsigned seed = (unsigned)rank + 1;
	long number = 0;
	do {
		number++;
		EXPECT(cudaLaunchHostFunc(stream, collective, (void *)number), 0);
		EXPECT(cudaMemsetAsync(weights, (int)(number & 0xff), WORDS * sizeof *weights, stream), 0);
		EXPECT(cudaMemsetAsync(cache, (int)(number & 0xff), WORDS * sizeof *cache, stream), 0);
		if (next)
			EXPECT(cudaMemcpyAsync(cache, next, WORDS * sizeof *cache, 3, stream), 0);
		if (rand_r(&seed) % 3)
			EXPECT(cudaStreamSynchronize(stream), 0);
		usleep((useconds_t)(rand_r(&seed) % (1000 * (rank + 2))));
		if (rank == 0 && shared->last == 0 && told_to_stop())
			shared->last = number + MOST; /* no rank has come so far */
	} while (number != shared->last);
	EXPECT(cudaStreamSynchronize(stream), 0);
	unsigned char *read = malloc(WORDS * sizeof *weights);
	EXPECT(cudaMemcpy(read, weights, WORDS * sizeof *weights, 2), 0);
	for (size_t i = 0; i < WORDS * sizeof *weights; i++)
		EXPECT(read[i], number & 0xff);
	if (next) {
		collective((void *)(number + 1)); /* waits until all have written theirs */
		EXPECT(cudaMemcpy(read, next, WORDS * sizeof *weights, 2), 0);
		for (size_t i = 0; i < WORDS * sizeof *weights; i++)
			EXPECT(read[i], number & 0xff);
		collective((void *)(number + 2));
	}
	printf("%ld\n", number);
	fflush(stdout);
	return 0;
}
