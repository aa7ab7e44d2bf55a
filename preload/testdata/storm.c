/* 16 threads allocate, fill, check and free, in and out of regions, while one pauses and resumes its own tags and, now
 * and then, everything that exists. */
#include "host.h"

#include <stdatomic.h>

enum { THREADS = 16 };
static _Atomic int running = THREADS;

static void *work(void *argument)
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
			EXPECT(tms_pause(tag), 0);
			EXPECT(tms_resume(tag), 0);
		}
		CHECK(filled(in, size, id * 1000 + round));
		CHECK(filled(out, size, id + round));
		EXPECT(cudaFree(out), 0);
		EXPECT(cudaFree(in), 0);
	}
	atomic_fetch_sub(&running, 1);
	return NULL;
}

int main(void)
{
	size_t before = free_bytes();
	pthread_t thread[THREADS];
	void *shared = pausable(4 * MIB, "shared", true);
	fill(shared, 4 * MIB, 42);
	for (uintptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&thread[i], NULL, work, (void *)i), 0);
	int cycles = 0;
	while (atomic_load(&running) > 0 || cycles <= 3) {
		EXPECT(tms_pause("shared"), 0);
		/* A free by another thread waits for a pause of that memory. */
		void *extra = pausable(MIB, "shared", false);
		EXPECT(tms_resume("shared"), 0);
		EXPECT(cudaFree(extra), 0);
		CHECK(filled(shared, 4 * MIB, 42));
		CHECK(tms_stats_json(NULL, 0) > 0);
		cycles++;
	}
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(thread[i], NULL), 0);
	EXPECT(cudaFree(shared), 0);
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
