/* Allocates in every way, and prints what a trace must hold: action, address, size, stream. Called as: trace
 * calls|fork|threads */
#include "host.h"


static void say(const char *action, const void *pointer, size_t size, const void *stream)
{
	printf("%s,0x%lx,%zu,0x%lx\n", action, (unsigned long)pointer, size, (unsigned long)stream);
}

#define FUNCTION(name, ...) static int (*name)(__VA_ARGS__)
FUNCTION(malloc_pitch, void **, size_t *, size_t, size_t);
FUNCTION(malloc_async, void **, size_t, void *);
FUNCTION(free_async, void *, void *);
FUNCTION(malloc_own, void **, size_t, void *);
FUNCTION(driver_malloc, void **, size_t);
FUNCTION(driver_free, void *);

static void look_up(void)
{
	malloc_pitch = dlsym(RTLD_DEFAULT, "cudaMallocPitch");
	malloc_async = dlsym(RTLD_DEFAULT, "cudaMallocAsync");
	malloc_own = dlsym(RTLD_DEFAULT, "cudaMallocAsync_ptsz");
	free_async = dlsym(RTLD_DEFAULT, "cudaFreeAsync");
	driver_malloc = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
	driver_free = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
	CHECK(malloc_pitch && malloc_async && malloc_own && free_async && driver_malloc && driver_free);
}

static void pairs(void *stream)
{
	void *pointer = NULL;
	size_t pitch = 0;
	EXPECT(cudaMalloc(&pointer, 1000), 0);
	say("allocate", pointer, 1000, NULL);
	say("free", pointer, 1000, NULL);
	EXPECT(cudaFree(pointer), 0);
	EXPECT(driver_malloc(&pointer, 3 * MIB), 0);
	say("allocate", pointer, 3 * MIB, NULL);
	say("free", pointer, 3 * MIB, NULL);
	EXPECT(driver_free(pointer), 0);
	EXPECT(malloc_pitch(&pointer, &pitch, 100, 7), 0);
	say("allocate", pointer, 700, NULL);
	say("free", pointer, 700, NULL);
	EXPECT(cudaFree(pointer), 0);
	EXPECT(malloc_async(&pointer, 5000, stream), 0);
	say("allocate", pointer, 5000, stream);
	say("free", pointer, 5000, stream);
	EXPECT(cudaFree(pointer), 0);
	EXPECT(malloc_own(&pointer, 5000, NULL), 0);
	say("allocate", pointer, 5000, (void *)2);
	say("free", pointer, 5000, stream);
	EXPECT(free_async(pointer, stream), 0);
	EXPECT(cudaMalloc(&pointer, (size_t)1 << 50), 2);
	say("allocate failure", NULL, (size_t)1 << 50, NULL);
	EXPECT(cudaMalloc(&pointer, 0), 0);
	EXPECT(cudaFree(NULL), 0);
	CHECK(cudaFree((void *)0x1234) != 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
}

static void calls(void)
{
	void *stream = NULL, *block = NULL, *second = NULL;
	tms_pool *pool = NULL;
	EXPECT(cudaStreamCreate(&stream), 0);
	pairs(stream);
	tms_set_interesting_region(true);
	pairs(stream);
	tms_set_interesting_region(false);

	EXPECT(tms_pause(NULL), 0); /* makes the stream-ordered frees */
	EXPECT(tms_resume(NULL), 0);

	/* A free that fails is not in the trace. */
	block = pausable(3 * MIB, "tag", false);
	say("allocate", block, 3 * MIB, NULL);
	sim_fail("cuMemUnmap", 1, 999);
	EXPECT(cudaFree(block), 999);
	say("free", block, 3 * MIB, NULL);
	say("allocate", block, 3 * MIB, NULL);
	EXPECT(cudaFree(block), 0);
	say("free", block, 3 * MIB, NULL);

	/* The trace has what a pool hands out, not the segments that it takes. */
	EXPECT(tms_pool_create(&pool, "bfc", NULL, -1), 0);
	EXPECT(tms_pool_malloc(pool, &block, 100, stream), 0);
	say("allocate", block, 100, stream);
	EXPECT(tms_pool_malloc(pool, &second, 300, NULL), 0);
	say("allocate", second, 300, NULL);
	EXPECT(tms_pool_free(pool, block), 0);
	say("free", block, 100, stream);
	EXPECT(tms_pool_malloc(pool, &block, 200, NULL), 0);
	say("allocate", block, 200, NULL);
	EXPECT(tms_pool_malloc(pool, &block, (size_t)1 << 50, NULL), 2);
	say("allocate failure", NULL, (size_t)1 << 50, NULL);
	EXPECT(tms_pool_destroy(pool), 0); /* in order of address, which is how bfc keeps them */
	say("free", block, 200, NULL);
	say("free", second, 300, NULL);

	block = tms_torch_malloc(100, 0, stream);
	say("allocate", block, 100, stream);
	tms_torch_free(block, 100, 0, stream);
	say("free", block, 100, stream);
	EXPECT(tms_torch_pool_use("caching", NULL), 0);
	block = tms_torch_pool_malloc(100, 0, stream);
	say("allocate", block, 100, stream);
	tms_torch_pool_free(block, 100, 0, stream);
	say("free", block, 100, stream);
	CHECK(!tms_torch_pool_malloc((ssize_t)1 << 50, 0, stream));
	say("allocate failure", NULL, (size_t)1 << 50, stream);
}

/* The child's trace is its own; records that it inherits are not written twice. */
static void forks(void)
{
	void *block = NULL, *kept = NULL;
	EXPECT(cudaMalloc(&kept, MIB), 0);
	say("allocate", kept, MIB, NULL);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		CHECK(cudaMalloc(&block, 100) != 0); /* CUDA does not survive a fork */
		exit(0);
	}
	EXPECT(code_of(child), 0);
	fprintf(stderr, "%d\n", (int)child);
	EXPECT(cudaFree(kept), 0);
	say("free", kept, MIB, NULL);
}

static void *work(void *unused)
{
	void *block[4] = {NULL};
	for (int i = 0; i < 2000; i++) {
		EXPECT(cudaFree(block[i % 4]), 0);
		tms_set_interesting_region(i % 3 == 0);
		EXPECT(cudaMalloc(&block[i % 4], (size_t)(i % 7 + 1) * 1000), 0);
	}
	for (int i = 0; i < 4; i++)
		EXPECT(cudaFree(block[i]), 0);
	return unused;
}

static void threads_at_once(void)
{
	pthread_t thread[4];
	start_all(thread, 4, work);
	join_all(thread, 4);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	look_up();
	CHECK(RUN_PART(argv[1], {"calls", calls}, {"fork", forks}, {"threads", threads_at_once}));
	return 0;
}
