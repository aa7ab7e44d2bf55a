/* A pool of a given kind through the C interface: outside regions and in one; its errors; on a device that is not
 * current; in many threads; in a forked child. Called as: pool KIND OPTIONS, on two devices. */
#include "host.h"

enum { BLOCKS = 40 };
static const char *kind, *options;
static tms_pool *const nowhere = (tms_pool *)0x12345;

static size_t size_of(int i)
{
	return (size_t)(i % 5 + 1) * 70000 / 4 * 4;
}

static char *statistics(tms_pool *pool)
{
	size_t length = tms_pool_stats_json(pool, NULL, 0);
	char *text = malloc(length + 1);
	CHECK(text && length > 0);
	EXPECT(tms_pool_stats_json(pool, text, length + 1), length);
	return text;
}

static long long number(tms_pool *pool, const char *name)
{
	char *text = statistics(pool), *found = strstr(text, name);
	CHECK(found);
	long long value = atoll(found + strlen(name) + 1);
	free(text);
	return value;
}

static void make(tms_pool *pool, void **block)
{
	for (int i = 0; i < BLOCKS; i++) {
		EXPECT(tms_pool_malloc(pool, &block[i], size_of(i), NULL), 0);
		CHECK(block[i]);
		fill(block[i], size_of(i), (unsigned)i);
	}
}

static void hold(void **block, int step)
{
	for (int i = 0; i < BLOCKS; i += step)
		CHECK(filled(block[i], size_of(i), (unsigned)i));
}

static void outside(void)
{
	tms_pool *pool = NULL;
	void *block[BLOCKS];
	size_t before = free_bytes(), released = 0;
	EXPECT(tms_pool_create(&pool, kind, options, -1), 0);
	EXPECT(free_bytes(), before);
	make(pool, block);
	CHECK((long long)(before - free_bytes()) >= number(pool, "\"reserved_bytes\""));
	EXPECT(number(pool, "\"blocks\""), BLOCKS);
	EXPECT(tms_pause(NULL), 0);
	hold(block, 1); /* CUDA's own memory */
	EXPECT(tms_resume(NULL), 0);
	for (int i = 1; i < BLOCKS; i += 2)
		EXPECT(tms_pool_free(pool, block[i]), 0);
	hold(block, 2);
	for (int i = 0; i < BLOCKS; i += 2)
		EXPECT(tms_pool_free(pool, block[i]), 0);
	CHECK(number(pool, "\"peak_live_bytes\"") > 0);
	EXPECT(tms_pool_reset_peak_stats(pool), 0);
	EXPECT(number(pool, "\"peak_live_bytes\""), 0);
	size_t held = before - free_bytes();
	EXPECT(tms_pool_trim(pool, &released), 0);
	EXPECT(released, held);
	EXPECT(free_bytes(), before);
	make(pool, block);
	EXPECT(tms_pool_destroy(pool), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_pool_destroy(pool), 1);
	CHECK(strcmp(tms_last_error(), "the pool was destroyed") == 0);
	EXPECT(tms_pool_malloc(pool, &block[0], 1, NULL), 1);
	CHECK(strcmp(tms_last_error(), "the pool was destroyed") == 0);
}

static void in_region(void)
{
	tms_pool *pool = NULL;
	void *block[BLOCKS];
	size_t before = free_bytes();
	tms_set_interesting_region(true);
	tms_set_current_tag("pool");
	tms_set_enable_cpu_backup(true);
	EXPECT(tms_pool_create(&pool, kind, options, -1), 0);
	tms_set_interesting_region(false);
	tms_set_enable_cpu_backup(false);
	tms_set_current_tag(NULL);
	make(pool, block); /* the settings that hold now do not matter */
	size_t during = free_bytes();
	CHECK(during < before);
	EXPECT(tms_pause("other"), 0);
	EXPECT(free_bytes(), during);
	EXPECT(tms_pause("pool"), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_pool_free(pool, block[0]), 0); /* while it is paused */
	EXPECT(tms_resume("pool"), 0);
	for (int i = 1; i < BLOCKS; i++)
		CHECK(filled(block[i], size_of(i), (unsigned)i));
	EXPECT(tms_pool_destroy(pool), 0);
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
}

static void errors(void)
{
	tms_pool *pool = NULL;
	void *block = NULL, *other = &block;
	size_t before = free_bytes();
	EXPECT(tms_pool_create(&pool, "heap", NULL, -1), 1);
	CHECK(!pool && strstr(tms_last_error(), "heap") && strstr(tms_last_error(), "caching"));
	FAILS(tms_pool_create(&pool, kind, "no_such_option=1", -1), 1, "no_such_option");
	EXPECT(tms_pool_create(&pool, kind, "=", -1), 1);
	EXPECT(tms_pool_create(NULL, kind, NULL, -1), 1);
	EXPECT(tms_pool_create(&pool, NULL, NULL, -1), 1);
	EXPECT(tms_pool_create(&pool, kind, options, 7), 101);
	CHECK(!pool);
	FAILS(tms_pool_malloc(nowhere, &block, 1, NULL), 1, "0x12345 is not the handle of a pool");
	EXPECT(tms_pool_free(nowhere, other), 1);
	EXPECT(tms_pool_trim(nowhere, NULL), 1);
	FAILS(tms_pool_destroy(NULL), 1, "the pool is NULL");
	EXPECT(tms_pool_stats_json(nowhere, NULL, 0), 0);
	EXPECT(tms_pool_snapshot_json(nowhere, NULL, 0), 0);
	EXPECT(tms_pool_reset_peak_stats(nowhere), 1);

	EXPECT(tms_pool_create(&pool, kind, options, -1), 0);
	EXPECT(tms_pool_malloc(pool, NULL, 1, NULL), 1);
	block = other;
	EXPECT(tms_pool_malloc(pool, &block, 0, NULL), 0);
	CHECK(!block);
	EXPECT(tms_pool_free(pool, NULL), 0);
	EXPECT(tms_pool_free(pool, other), 1);
	block = other;
	for (size_t huge = (size_t)1 << 62; huge != 1; huge = huge << 1 | huge >> 63) {
		EXPECT(tms_pool_malloc(pool, &block, huge, NULL), 2);
		EXPECT(tms_pool_malloc(pool, &block, huge - 1, NULL), 2);
		EXPECT(tms_pool_malloc(pool, &block, 0 - huge, NULL), 2);
	}
	EXPECT(tms_pool_malloc(pool, &block, SIZE_MAX, NULL), 2);
	CHECK(block == other);
	sim_fail("cuMemAlloc", 1, 2);
	sim_fail("cuMemAlloc", 2, 2);
	sim_fail("cuMemAlloc", 3, 2);
	int code = tms_pool_malloc(pool, &block, MIB, NULL);
	CHECK(code == 2 || code == 0); /* some kinds try again */
	CHECK(sim_stat("calls:cuMemAlloc") > 0);
	sim_clear_failures();
	if (code == 0)
		EXPECT(tms_pool_free(pool, block), 0);
	EXPECT(tms_pool_malloc(pool, &block, MIB, NULL), 0);
	FAILS(tms_pool_free(pool, (char *)block + 4), 1, "not the start of a live block");
	EXPECT(tms_pool_free(pool, block), 0);
	EXPECT(tms_pool_free(pool, block), 1);
	EXPECT(tms_pool_record_stream(pool, block, NULL), strcmp(kind, "caching") == 0 ? 1 : 801);
	EXPECT(tms_pool_destroy(pool), 0);
	EXPECT(free_bytes(), before);
}

static void other_device(void)
{
	for (int region = 0; region < 2; region++) {
		tms_pool *pool = NULL;
		void *block = NULL;
		int device = -1;
		EXPECT(cudaSetDevice(1), 0);
		size_t there = free_bytes();
		EXPECT(cudaSetDevice(0), 0);
		size_t here = free_bytes();
		tms_set_interesting_region(region);
		EXPECT(tms_pool_create(&pool, kind, options, 1), 0);
		tms_set_interesting_region(false);
		EXPECT(tms_pool_malloc(pool, &block, MIB, NULL), 0);
		EXPECT(tms_pool_malloc(pool, &block, (size_t)1 << 40, NULL), 2);
		CHECK(!strstr(tms_last_error(), "device 0") && !strstr(tms_last_error(), "GPU 0"));
		EXPECT(cudaGetDevice(&device), 0);
		EXPECT(device, 0);
		EXPECT(free_bytes(), here);
		EXPECT(cudaSetDevice(1), 0);
		CHECK(free_bytes() < there);
		EXPECT(cudaSetDevice(0), 0);
		EXPECT(tms_pool_destroy(pool), 0);
		EXPECT(cudaGetDevice(&device), 0);
		EXPECT(device, 0);
		EXPECT(cudaSetDevice(1), 0);
		EXPECT(free_bytes(), there);
		EXPECT(cudaSetDevice(0), 0);
	}
}

/* A block that another stream uses is not handed out again before that stream has done its work. */
static void streams(void)
{
	tms_pool *pool = NULL;
	void *own = NULL, *other = NULL, *first = NULL, *second = NULL;
	EXPECT(cudaStreamCreate(&own), 0);
	EXPECT(cudaStreamCreate(&other), 0);
	EXPECT(tms_pool_create(&pool, "caching", NULL, -1), 0);
	EXPECT(tms_pool_malloc(pool, &first, MIB, own), 0);
	EXPECT(cudaMemsetAsync(first, 1, MIB, other), 0);
	EXPECT(tms_pool_record_stream(pool, first, other), 0);
	EXPECT(tms_pool_free(pool, first), 0);
	sim_fail("cuEventQuery", 1, 600); /* it is not ready */
	EXPECT(tms_pool_malloc(pool, &second, MIB, own), 0);
	CHECK(second != first);
	EXPECT(tms_pool_free(pool, second), 0);
	EXPECT(cudaStreamSynchronize(other), 0);
	EXPECT(tms_pool_malloc(pool, &second, MIB, own), 0);
	EXPECT(tms_pool_malloc(pool, &second, MIB, own), 0);
	EXPECT(number(pool, "\"segments\""), 1);
	EXPECT(tms_pool_destroy(pool), 0);
	EXPECT(tms_pool_create(&pool, "caching", "memory_fraction=0.01", -1), 0);
	FAILS(tms_pool_malloc(pool, &first, 64 * MIB, own), 2, "allowed");
	EXPECT(tms_pool_destroy(pool), 0);
}

static void *work(void *shared)
{
	void *block[8] = {NULL};
	for (int i = 0; i < 400; i++) {
		int n = i % 8;
		EXPECT(tms_pool_free(shared, block[n]), 0);
		EXPECT(tms_pool_malloc(shared, &block[n], size_of(i), NULL), 0);
	}
	for (int n = 0; n < 8; n++)
		EXPECT(tms_pool_free(shared, block[n]), 0);
	return NULL;
}

static void many_threads(void)
{
	tms_pool *pool = NULL;
	pthread_t thread[4];
	IN_REGION(EXPECT(tms_pool_create(&pool, kind, options, -1), 0));
	for (int i = 0; i < 4; i++)
		start(&thread[i], work, pool);
	for (int i = 0; i < 20; i++) {
		PAUSE_AND_RESUME(NULL);
	}
	join_all(thread, 4);
	EXPECT(number(pool, "\"live_bytes\""), 0);
	EXPECT(tms_pool_destroy(pool), 0);
}

/* A pool is destroyed while other threads use it, outside regions and in one: they get an error, and no memory is left
 * behind. */
enum { THREADS = 4, ROUNDS = 20 };
static _Atomic int users;

static void *use_until_destroyed(void *pool)
{
	void *block[4] = {NULL};
	for (int i = 0;; i++) {
		if (i == 4)
			users++;
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

static void destroyed_beside_threads(void)
{
	size_t before = free_bytes();
	for (int round = 0; round < ROUNDS; round++) {
		tms_pool *pool = NULL;
		pthread_t thread[THREADS];
		users = 0;
		tms_set_interesting_region(round % 2);
		EXPECT(tms_pool_create(&pool, kind, options, -1), 0);
		tms_set_interesting_region(false);
		for (int i = 0; i < THREADS; i++)
			start(&thread[i], use_until_destroyed, pool);
		AWAIT(users >= THREADS);
		EXPECT(tms_pool_destroy(pool), 0);
		EXPECT(tms_pool_destroy(pool), 1);
		join_all(thread, THREADS);
		EXPECT(free_bytes(), before);
		EXPECT(tms_pool_stats_json(pool, NULL, 0), 0);
		CHECK(strstr(tms_last_error(), "the pool was destroyed"));
	}
}

static void in_a_child(void)
{
	tms_pool *pool = NULL;
	void *block = NULL;
	EXPECT(tms_pool_create(&pool, kind, options, -1), 0);
	EXPECT(tms_pool_malloc(pool, &block, MIB, NULL), 0);
	pid_t child = fork();
	if (child == 0) {
		alarm(120);
		EXPECT(tms_pool_malloc(pool, &block, 1, NULL), 3);
		EXPECT(tms_pool_free(pool, block), 3);
		EXPECT(tms_pool_trim(pool, NULL), 3);
		EXPECT(tms_pool_destroy(pool), 3);
		EXPECT(tms_pool_stats_json(pool, NULL, 0), 0);
		CHECK(!tms_torch_pool_malloc(1, 0, NULL));
		_exit(0);
	}
	EXPECT(code_of(child), 0);
	EXPECT(tms_pool_destroy(pool), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	kind = argv[1];
	options = argv[2];
	outside();
	in_region();
	errors();
	other_device();
	many_threads();
	destroyed_beside_threads();
	if (strcmp(kind, "caching") == 0)
		streams();
	in_a_child();
	return 0;
}
