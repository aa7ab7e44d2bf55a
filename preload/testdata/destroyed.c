/* A pool is destroyed while other threads use it, outside regions and in one: they get an error, and no memory is left
 * behind. Called as: destroyed KIND OPTIONS */
#include "host.h"

#include <sched.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 20 };
static atomic_int running;

static void *work(void *pool)
{
	void *block[4] = {NULL};
	for (int i = 0;; i++) {
		if (i == 4)
			atomic_fetch_add(&running, 1);
		int code = tms_pool_malloc(pool, &block[i % 4], (size_t)(i % 5 + 1) * 300000, NULL);
		if (code == 0 && i % 4 == 3)
			for (int n = 0; n < 4 && code == 0; n++)
				code = tms_pool_free(pool, block[n]);
		if (code != 0) {
			EXPECT(code, 1);
			CHECK(strcmp(tms_last_error(), "the pool was destroyed") == 0);
			return NULL;
		}
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	size_t before = free_bytes();
	for (int round = 0; round < ROUNDS; round++) {
		tms_pool *pool = NULL;
		pthread_t thread[THREADS];
		atomic_store(&running, 0);
		tms_set_interesting_region(round % 2);
		EXPECT(tms_pool_create(&pool, argv[1], argv[2], -1), 0);
		tms_set_interesting_region(false);
		for (int i = 0; i < THREADS; i++)
			EXPECT(pthread_create(&thread[i], NULL, work, pool), 0);
		while (atomic_load(&running) < THREADS)
			sched_yield();
		EXPECT(tms_pool_destroy(pool), 0);
		EXPECT(tms_pool_destroy(pool), 1);
		for (int i = 0; i < THREADS; i++)
			EXPECT(pthread_join(thread[i], NULL), 0);
		EXPECT(free_bytes(), before);
		EXPECT(tms_pool_stats_json(pool, NULL, 0), 0);
		CHECK(strstr(tms_last_error(), "the pool was destroyed"));
	}
	return 0;
}
