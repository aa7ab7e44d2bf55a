/* Limits of the process and of the machine. Called as: limits memory|threads|bookkeeping|descriptors|host */
#include "host.h"

/* Limits that would make the Go runtime abort are refused with an error, and plain CUDA still works. */
static void refused(int resource, rlim_t amount)
{
	void *pointer = NULL;
	limit_to(resource, amount);
	tms_set_interesting_region(true);
	FAILS(cudaMalloc(&pointer, 10), 304, "ulimit");
	EXPECT(threads(), 1);
	tms_set_interesting_region(false);
	EXPECT(cudaMalloc(&pointer, 10), 0);
	/* Raised, it works without a restart. */
	limit_to(resource, RLIM_INFINITY);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 10), 0);
	EXPECT(cudaFree(pointer), 0);
}

static void memory(void)
{
	refused(RLIMIT_AS, address_space() + 500 * MIB);
}

static void few_threads(void)
{
	if (getuid() == 0 && (setgid(12345) || setuid(12345)))
		_exit(77); /* this limit does not bind root */
	refused(RLIMIT_NPROC, 3);
}

/* The library can take no more memory for its records of segments: it says so before none is left, and existing
 * segments can be paused, resumed and freed; then there is room again. */
static void bookkeeping(void)
{
	static void *blocks[1 << 21];
	void *more = NULL;
	tms_pool *pool = NULL;
	void *first = kept_memory(MIB, "first", 1);
	PAUSE_AND_RESUME(NULL);
	pausable(MIB, "plain", false);
	EXPECT(tms_pool_create(&pool, "bfc", NULL, 0), 0);
	limit_to(RLIMIT_DATA, MIB);
	int made = 0, code = 0;
	for (; made < 1 << 21 && code == 0; made += code == 0)
		code = tms_pool_malloc(pool, &blocks[made], 256, NULL);
	FAILS(code, 304, "bookkeeping is full");
	CHECK(made > 10000);
	IN_REGION(EXPECT(cudaMalloc(&more, MIB), 304));
	PAUSE_AND_RESUME("plain");
	while (made > 0)
		EXPECT(tms_pool_free(pool, blocks[--made]), 0);
	EXPECT(tms_pool_destroy(pool), 0);
	tms_set_interesting_region(true);
	for (int i = 0; i < 10000 && (code = cudaMalloc(&more, MIB)) == 304; i++)
		usleep(20000); /* a full heap is searched ten times a second */
	EXPECT(code, 0);
	limit_to(RLIMIT_DATA, RLIM_INFINITY);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(first, MIB, 1));
}

/* The host has no descriptor left when the library is first used, and when it waits: it gets codes, and
 * contents are kept. */
static void no_descriptors(void)
{
	void *hog = NULL;
	int spent[64], count = 0;
	EXPECT(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}), 0);
	while (count < 64 && (spent[count] = dup(0)) >= 0)
		count++;
	EXPECT(errno, EMFILE);

	/* The simulator must have the descriptors that it needs: one for each handle. */
	close(spent[--count]);
	void *memory = kept_memory(8 * MIB, "h", 1);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume_within(NULL, 0.2), 0);
	EXPECT(tms_pause(NULL), 0);
	/* Others take all of the memory: a resume waits for it, in vain. */
	EXPECT(cudaMalloc(&hog, free_bytes()), 0);
	EXPECT(tms_resume_within(NULL, 0.3), 2);
	EXPECT(cudaFree(hog), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, 8 * MIB, 1));
	EXPECT(tms_prepare(NULL, true), 0);
	EXPECT(tms_trim(), 0);
	/* Not even one is left: an operation that needs one says so, and nothing is lost. */
	EXPECT(tms_pause(NULL), 0);
	spent[count++] = dup(0);
	int code = tms_resume(NULL);
	CHECK(code == 0 || code == 2 || code == 304 || code == 999);
	close(spent[--count]);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, 8 * MIB, 1));
}

static size_t available(void)
{
	char line[200];
	unsigned long long kib = 0, sum = 0;
	FILE *meminfo = fopen("/proc/meminfo", "r");
	CHECK(meminfo);
	while (fgets(line, sizeof line, meminfo))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1 || sscanf(line, "SwapFree: %llu", &kib) == 1)
			sum += kib;
	fclose(meminfo);
	return (size_t)sum << 10;
}

/* A backup for which the machine has no host memory is refused before anything is touched, and everything stays active;
 * without that segment the same call works. */
static void host(void)
{
	void *small = pausable(3 * MIB, "short", true), *large = pausable(available() + 4096 * MIB, "short", true);
	fill(small, 3 * MIB, 1);
	fill(large, 3 * MIB, 2);
	size_t during = free_bytes();
	EXPECT(tms_pause(NULL), 304);
	CHECK(strstr(tms_last_error(), "host memory") && strstr(tms_last_error(), " are needed and ") &&
	      strstr(tms_last_error(), " are available; "));
	EXPECT(tms_prepare(NULL, true), 304);
	EXPECT(free_bytes(), during);
	CHECK(filled(small, 3 * MIB, 1) && filled(large, 3 * MIB, 2));
	EXPECT(sim_stat("registered_bytes"), 0);
	EXPECT(cudaFree(large), 0);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(small, 3 * MIB, 1));
}

int main(int argc, char **argv)
{
	void *plain = NULL;
	CHECK(argc == 2);
	EXPECT(cudaMalloc(&plain, 10), 0); /* the driver has its own by now */
	CHECK(RUN_PART(argv[1], {"memory", memory}, {"threads", few_threads}, {"bookkeeping", bookkeeping},
		       {"descriptors", no_descriptors}, {"host", host}));
	return 0;
}
