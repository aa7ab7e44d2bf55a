/* Many threads at once. Called as: storm own|one|crowd */
#include "host.h"

enum { THREADS = 16 };
static _Atomic int running = THREADS;

static void *work_on_own_tags(void *argument)
{
	unsigned id = (unsigned)(uintptr_t)argument;
	char tag[16];
	snprintf(tag, sizeof tag, "own %u", id);
	for (unsigned round = 0; round < (unsigned)often(60, 12); round++) {
		size_t size = (1 + (id * 7 + round) % 5) * MIB / 2;
		void *in = pausable(size, tag, round % 2), *out = NULL;
		EXPECT(tms_get_interesting_region(), false);
		EXPECT(cudaMalloc(&out, size), 0);
		CHECK(in != out);
		fill(in, size, id * 1000 + round);
		fill(out, size, id + round);
		if (round % 3 == 0 && round % 2) {
			PAUSE_AND_RESUME(tag);
		}
		CHECK(filled(in, size, id * 1000 + round));
		CHECK(filled(out, size, id + round));
		EXPECT(cudaFree(out), 0);
		EXPECT(cudaFree(in), 0);
	}
	running--;
	return NULL;
}

static void *work_on_one_tag(void *unused)
{
	for (int round = 0; round < 150; round++) {
		void *a = pausable(MIB, "contended", round % 2), *b = pausable(3 * MIB, "contended", false);
		EXPECT(cudaFree(a), 0);
		EXPECT(cudaFree(b), 0);
	}
	running--;
	return unused;
}

/* The threads allocate, fill, check and free, in and out of regions, while one pauses and resumes its own tags and, now
 * and then, everything that exists. */
static void own(void)
{
	pthread_t thread[THREADS];
	void *shared = kept_memory(4 * MIB, "shared", 42);
	start_all(thread, THREADS, work_on_own_tags);
	for (int cycles = 0; running > 0 || cycles <= 3; cycles++) {
		EXPECT(tms_pause("shared"), 0);
		/* A free by another thread waits for a pause of that memory. */
		void *extra = pausable(MIB, "shared", false);
		EXPECT(tms_resume("shared"), 0);
		EXPECT(cudaFree(extra), 0);
		CHECK(filled(shared, 4 * MIB, 42));
		CHECK(tms_stats_json(NULL, 0) > 0);
	}
	join_all(thread, THREADS);
	EXPECT(cudaFree(shared), 0);
}

/* They allocate and free in the tag that another thread pauses and resumes. A segment may be paused when it is freed;
 * it is never lost, freed twice, or left behind. */
static void one(void)
{
	pthread_t thread[THREADS];
	start_all(thread, THREADS, work_on_one_tag);
	while (running > 0) {
		PAUSE_AND_RESUME("contended");
	}
	join_all(thread, THREADS);
}

enum { MOST = 2000, STACK = 64 << 10 };
static pthread_barrier_t all;

static void *body(void *id)
{
	void *memory;
	pthread_barrier_wait(&all);
	EXPECT(cudaMalloc(&memory, 4096), 0);
	EXPECT(cudaMemset(memory, (int)(intptr_t)id & 127, 4096), 0);
	pthread_barrier_wait(&all);
	unsigned char last;
	EXPECT(cudaMemcpy(&last, (char *)memory + 4095, 1, 2), 0);
	EXPECT(last, (intptr_t)id & 127);
	EXPECT(cudaFree(memory), 0);
	return NULL;
}

/* A crowd makes its first allocations at once: the library has room for their records, or makes it. */
static void crowd(void)
{
	static pthread_t threads[MOST];
	int count = often(MOST, 600);
	pthread_attr_t attributes;
	EXPECT(pthread_attr_init(&attributes), 0);
	EXPECT(pthread_attr_setstacksize(&attributes, STACK), 0);
	EXPECT(pthread_barrier_init(&all, NULL, (unsigned)count), 0);
	for (intptr_t i = 0; i < count; i++)
		EXPECT(pthread_create(&threads[i], &attributes, body, (void *)i), 0);
	join_all(threads, count);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	size_t before = free_bytes();
	CHECK(RUN_PART(argv[1], {"own", own}, {"one", one}, {"crowd", crowd}));
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(sim_stat("mappings"), 0);
	return 0;
}
