/* PyTorch's functions, as its CUDAPluggableAllocator calls them: in and out of regions, streams, graphs, the memory
 * fraction, and the exception when memory runs out. Called as: torchpool KIND OPTIONS LIBC10, or for which PyTorch
 * versions a pool can serve: torchpool none, throws LIBC10, silent LIBC10 */
#include "host.h"

static const char *kind;

static int occurrences(const char *words)
{
	char *text = text_of(tms_torch_pool_stats_json);
	int count = 0;
	for (char *at = text; (at = strstr(at, words)); at++)
		count++;
	free(text);
	return count;
}

static void choice(const char *options)
{
	CHECK(!tms_torch_pool_malloc(100, 0, NULL));
	CHECK(strstr(tms_last_error(), "no kind of pool is chosen"));
	EXPECT(tms_torch_pool_use("heap", NULL), 1);
	EXPECT(tms_torch_pool_use(kind, "no_such_option=1"), 1);
	EXPECT(tms_torch_pool_use(NULL, NULL), 1);
	EXPECT(tms_torch_pool_use(kind, options), 0);
	EXPECT(tms_torch_pool_use(kind, options), 0);
	FAILS(tms_torch_pool_use(strcmp(kind, "bfc") == 0 ? "naive" : "bfc", NULL), 1, "already");
	tms_torch_pool_init(1);
	EXPECT(occurrences("device"), 0);
}

/* Each allocation follows its thread's region. */
static void regions(void)
{
	size_t before = free_bytes();
	void *plain = tms_torch_pool_malloc(MIB, 0, NULL);
	CHECK(plain);
	fill(plain, MIB, 1);
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(true);
	tms_set_current_tag("kept");
	void *kept = tms_torch_pool_malloc(MIB, 0, NULL);
	tms_set_enable_cpu_backup(false);
	tms_set_current_tag("lost");
	void *lost = tms_torch_pool_malloc(MIB, 0, NULL);
	tms_set_current_tag(NULL);
	tms_set_interesting_region(false);
	CHECK(kept && lost);
	fill(kept, MIB, 2);
	EXPECT(occurrences("\"tag\":\"kept\""), 1);
	EXPECT(occurrences("\"tag\":\"lost\""), 1);
	EXPECT(occurrences("\"tag\":null"), 1);
	size_t during = free_bytes();
	EXPECT(tms_pause("lost"), 0);
	size_t one = free_bytes() - during;
	CHECK(one >= MIB);
	EXPECT(tms_pause("kept"), 0);
	EXPECT(free_bytes() - during, 2 * one);
	CHECK(filled(plain, MIB, 1));
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(kept, MIB, 2));
	tms_torch_pool_free(kept, MIB, 0, NULL);
	tms_torch_pool_free(lost, MIB, 0, NULL);
	tms_torch_pool_free(plain, MIB, 0, NULL);
	tms_torch_pool_free(NULL, 0, 0, NULL);
	CHECK(!tms_torch_pool_malloc(0, 0, NULL));
	CHECK(!tms_torch_pool_malloc_or_throw(0, 0, NULL));
	CHECK(!tms_torch_pool_malloc(-1, 0, NULL));
	tms_torch_pool_reset();
	EXPECT(free_bytes(), before);
}

static void streams(void)
{
	void *own = NULL, *other = NULL;
	EXPECT(cudaStreamCreate(&own), 0);
	EXPECT(cudaStreamCreate(&other), 0);
	void *first = tms_torch_pool_malloc(MIB, 0, own);
	EXPECT(cudaMemsetAsync(first, 1, MIB, other), 0);
	tms_torch_pool_record_stream(first, other);
	tms_torch_pool_free(first, MIB, 0, own);
	sim_fail("cuEventQuery", 1, 600); /* it is not ready */
	void *second = tms_torch_pool_malloc(MIB, 0, own);
	CHECK(second && second != first);
	tms_torch_pool_free(second, MIB, 0, own);
	tms_torch_pool_reset();
}

/* A graph's memory is its own until the graph is gone. */
static void graphs(void)
{
	void *stream = NULL, *graph = NULL;
	struct tms_torch_pool_id id = {0, 42};
	size_t before = free_bytes();
	EXPECT(cudaStreamCreate(&stream), 0);
	tms_torch_pool_begin_allocate_to_pool(0, id, NULL);
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	void *inside = tms_torch_pool_malloc(MIB, 0, stream);
	CHECK(inside);
	EXPECT(cudaMemsetAsync(inside, 1, MIB, stream), 0);
	tms_torch_pool_free(inside, MIB, 0, stream);
	/* A pool that did not exist when the capture began. */
	tms_set_interesting_region(true);
	tms_set_current_tag("captured");
	void *tagged = tms_torch_pool_malloc(MIB, 0, stream);
	tms_set_current_tag(NULL);
	tms_set_interesting_region(false);
	CHECK(tagged);
	EXPECT(cudaMemsetAsync(tagged, 1, MIB, stream), 0);
	tms_torch_pool_free(tagged, MIB, 0, stream);
	tms_torch_pool_reset(); /* does nothing, without a message */
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	CHECK(graph);
	tms_torch_pool_end_allocate_to_pool(0, id);
	tms_torch_pool_reset();
	size_t held = before - free_bytes();
	CHECK(held >= 2 * MIB);
	void *after = tms_torch_pool_malloc(MIB, 0, stream);
	CHECK(after && after != inside && after != tagged);
	EXPECT(cudaGraphInstantiate(&graph, graph, 0), 0);
	fill(after, MIB, 3);
	EXPECT(cudaGraphLaunch(graph, stream), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	CHECK(filled(after, MIB, 3));
	tms_torch_pool_free(after, MIB, 0, stream);
	tms_torch_pool_release_pool(0, id);
	tms_torch_pool_reset();
	EXPECT(free_bytes(), before);
}

static void shortage(const char *libc10)
{
	tms_torch_pool_memory_fraction(0, 0);
	CHECK(!tms_torch_pool_malloc(MIB, 0, NULL));
	/* Without PyTorch there is nothing to throw. */
	CHECK(!tms_torch_pool_malloc_or_throw(MIB, 0, NULL));
	void *library = dlopen(libc10, RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	bool (*catches)(void *(*)(ssize_t, int, void *), ssize_t, char *, size_t) = dlsym(library, "catches");
	CHECK(catches);
	char words[2000];
	CHECK(catches(tms_torch_pool_malloc_or_throw, MIB, words, sizeof words));
	CHECK(strncmp(words, "CUDA out of memory. ", 20) == 0);
	CHECK(!strstr(words + 1, "CUDA out of memory"));
	tms_torch_pool_memory_fraction(1, 0);
	void *block = tms_torch_pool_malloc_or_throw(MIB, 0, NULL);
	CHECK(block);
	tms_torch_pool_free(block, MIB, 0, NULL);
	CHECK(!catches(tms_torch_pool_malloc_or_throw, MIB, words, sizeof words));
	CHECK(!tms_torch_pool_malloc((ssize_t)1 << 60, 0, NULL));
}

static void serves(bool throws)
{
	size_t before = free_bytes();
	EXPECT(tms_torch_pool_use("caching", NULL), 0);
	void *block = tms_torch_pool_malloc_or_throw(MIB, 0, NULL);
	CHECK(block);
	tms_torch_pool_free(block, MIB, 0, NULL);
	if (!throws) { /* A program of C's own sees NULL, and a line on stderr. */
		CHECK(!tms_torch_pool_malloc_or_throw((ssize_t)1 << 50, 0, NULL));
		CHECK(strstr(tms_last_error(), "out of memory"));
	}
	tms_torch_pool_reset();
	EXPECT(free_bytes(), before);
}

static void does_not_serve(void)
{
	for (int i = 0; i < 2; i++) {
		FAILS(tms_torch_pool_use("caching", NULL), 801, "torchCheckFail");
	}
	CHECK(!tms_torch_pool_malloc(MIB, 0, NULL));
	CHECK(strstr(tms_last_error(), "no kind of pool is chosen"));
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	if (argc < 4) {
		CHECK(argc == 2 || dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
		strcmp(argv[1], "silent") == 0 ? does_not_serve() : serves(argc == 3);
		return 0;
	}
	kind = argv[1];
	choice(argv[2]);
	regions();
	streams();
	graphs();
	shortage(argv[3]);
	/* Reported on stderr, because these functions return nothing. */
	tms_torch_pool_free((void *)0x1234, 1, 0, NULL);
	tms_torch_pool_release_pool(0, (struct tms_torch_pool_id){5, 5});
	tms_torch_pool_end_allocate_to_pool(0, (struct tms_torch_pool_id){5, 5});
	tms_torch_pool_memory_fraction(2, 0);
	return 0;
}
