/* Threads allocate and free in the same tag that another thread pauses and resumes. A segment may be paused when it is
 * freed; it is never lost, freed twice, or left behind. */
#include "host.h"

#include <stdatomic.h>

enum { THREADS = 16, ROUNDS = 150 };
static _Atomic int running = THREADS;

static void *work(void *unused)
{
	(void)unused;
	for (int round = 0; round < ROUNDS; round++) {
		void *a = pausable(MIB, "contended", round % 2), *b = pausable(3 * MIB, "contended", false);
		EXPECT(cudaFree(a), 0);
		EXPECT(cudaFree(b), 0);
	}
	atomic_fetch_sub(&running, 1);
	return NULL;
}

int main(void)
{
	size_t before = free_bytes();
	pthread_t thread[THREADS];
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&thread[i], NULL, work, NULL), 0);
	while (atomic_load(&running) > 0) {
		EXPECT(tms_pause("contended"), 0);
		EXPECT(tms_resume("contended"), 0);
	}
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(thread[i], NULL), 0);
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(sim_stat("mappings"), 0);
	return 0;
}
