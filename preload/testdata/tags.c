/* Many tags, few addresses, odd names: how much of the host's address space is taken, and how much is left. */
#include "host.h"

#define GIB ((size_t)1 << 30)

static void *nothing(void *unused)
{
	return unused;
}

/* Does what any program does now and then. */
static void host_goes_on(void)
{
	void *memory = malloc(300 * MIB);
	CHECK(memory);
	free(memory);
	on_a_thread(nothing, NULL);
}

static void *reserve(size_t size)
{
	return mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static int count; /* the second argument */

/* A tag for each step: each takes a granule, and the cost of a step does not grow with their number. Other work of the
 * machine only adds to a time, so the cheapest of many short series stands for a quarter of the steps. */
static void many(void)
{
	enum { SERIES = 100 };
	void **pointers = calloc((size_t)count, sizeof *pointers);
	CHECK(pointers && count % (4 * SERIES) == 0);
	char name[32];
	size_t before = address_space();
	double cheapest[4] = {1e9, 1e9, 1e9, 1e9};
	for (int i = 0; i < count;) {
		double *quarter = &cheapest[i / (count / 4)], begin = now(CLOCK_PROCESS_CPUTIME_ID);
		for (int end = i + SERIES; i < end; i++) {
			snprintf(name, sizeof name, "step %d", i);
			pointers[i] = pausable(512, name, false);
			EXPECT(tms_pause(name), 0);
			EXPECT(tms_last_bytes(), 2 * MIB);
		}
		double took = now(CLOCK_PROCESS_CPUTIME_ID) - begin;
		*quarter = took < *quarter ? took : *quarter;
	}
	CHECK(address_space() - before < 2 * (size_t)count * 2 * MIB + 128 * GIB);
	host_goes_on();
	char *text = stats();
	EXPECT(tms_stats_json(NULL, 0), strlen(text));
	CHECK(strstr(text, "\"step 0\"") && strstr(text, name));
	free(text);
	for (int i = 0; i < count; i++)
		EXPECT(cudaFree(pointers[i]), 0);
	printf("%d tags: the cheapest %d of each quarter took %.4f, %.4f, %.4f, %.4f s\n", count, SERIES, cheapest[0],
	       cheapest[1], cheapest[2], cheapest[3]);
	CHECK(cheapest[3] < 4 * cheapest[0]);
	/* A tag with nothing left is not listed for ever. */
	CHECK(!stats_say("step"));
	EXPECT(tms_pause(name), 0);
	EXPECT(tms_last_bytes(), 0);
	/* Nor are its addresses lost: others fit there. */
	size_t after = address_space();
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof name, "epoch %d", i);
		EXPECT(cudaFree(pausable(8 * MIB, name, false)), 0);
	}
	CHECK(address_space() - after < GIB);
	free(pointers);
}

/* With a limit on addresses most of the rest stays the host's, and what the host gives up can be used. */
static void limited(void)
{
	size_t before = address_space(), limit = before + 40 * GIB;
	limit_to(RLIMIT_AS, limit);
	void *kept = kept_memory(8 * MIB, "kept", 1);
	CHECK(address_space() - before < 15 * GIB);
	host_goes_on();
	void *half = reserve(20 * GIB);
	CHECK(half != MAP_FAILED);
	/* Eight more tags of 32 MiB, each with a range of its own. */
	void *others[8];
	char name[32];
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof name, "other %d", i);
		others[i] = pausable(32 * MIB, name, false);
	}
	/* The host takes nearly all addresses, so the rest of the arenas is used up, down to the last. */
	size_t rest = limit - address_space() - 600 * MIB;
	void *most = reserve(rest);
	CHECK(most != MAP_FAILED);
	static void *pieces[2000];
	int count = 0, code = 0;
	tms_set_interesting_region(true);
	for (; count < 2000 && code == 0; count++) {
		snprintf(name, sizeof name, "piece %d", count);
		tms_set_current_tag(name);
		code = cudaMalloc(&pieces[count], 64 * MIB);
		/* Only its addresses are needed, not its memory. */
		if (code == 0)
			EXPECT(tms_pause(name), 0);
	}
	FAILS(code, 2, "ulimit -v");
	count--;
	CHECK(count > 100);
	munmap(most, rest);
	host_goes_on();
	EXPECT(cudaMalloc(&pieces[count++], 64 * MIB), 0);
	tms_set_interesting_region(false);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume("kept"), 0);
	CHECK(filled(kept, 8 * MIB, 1));
	for (int i = 0; i < count; i++)
		EXPECT(cudaFree(pieces[i]), 0);
	for (int i = 0; i < 8; i++)
		EXPECT(cudaFree(others[i]), 0);
	EXPECT(cudaFree(kept), 0);
}

/* Names are bytes. Statistics are UTF-8, and tell them apart. */
static void odd(void)
{
	static const struct {
		const char *name, *shown;
	} all[] = {
		{"\xff", "\"\\\\xff\""},
		{"\xfe", "\"\\\\xfe\""},
		{"\\xff", "\"\\\\\\\\xff\""},
		{"\xef\xbf\xbd", "\"\xef\xbf\xbd\""}, /* U+FFFD itself */
		{"a\\b", "\"a\\\\b\""},
		{"caf\xc3\xa9 \xc3", "\"caf\xc3\xa9 \\\\xc3\""},
	};
	enum { COUNT = sizeof all / sizeof *all };
	void *pointers[COUNT];
	for (int i = 0; i < COUNT; i++)
		pointers[i] = pausable((size_t)(i + 1) * 2 * MIB, all[i].name, false);
	char *text = stats();
	for (int i = 0; i < COUNT; i++) {
		char entry[128];
		snprintf(entry, sizeof entry, "{\"tag\":%s,\"segments\":1,\"live_bytes\":%zu,", all[i].shown,
			 (size_t)(i + 1) * 2 * MIB);
		if (!strstr(text, entry)) {
			fprintf(stderr, "no %s in %s\n", entry, text);
			_exit(1);
		}
	}
	free(text);
	for (int i = 0; i < COUNT; i++) {
		EXPECT(tms_pause(all[i].name), 0);
		EXPECT(tms_last_bytes(), (size_t)(i + 1) * 2 * MIB);
		EXPECT(cudaFree(pointers[i]), 0);
	}
	/* The tags of PyTorch's pools too. */
	EXPECT(tms_torch_pool_use("caching", NULL), 0);
	tms_set_interesting_region(true);
	tms_set_current_tag("\xff");
	void *block = tms_torch_pool_malloc(1000, 0, NULL);
	CHECK(block);
	char pools[4096];
	CHECK(tms_torch_pool_stats_json(pools, sizeof pools) < sizeof pools);
	CHECK(strstr(pools, "\"tag\":\"\\\\xff\""));
	tms_torch_pool_free(block, 1000, 0, NULL);
}

/* Several tags are paused as one: a failure for one leaves all as they were, and contents to be discarded go last. */
static void together(void)
{
	enum { SIZE = 2 * MIB };
	static const char *const a[] = {"a", NULL}, *const b[] = {"b", NULL}, *const both[] = {"b", "a", "b", NULL};
	void *of_a = pausable(SIZE, "a", true), *of_b = pausable(SIZE, "b", true), *of_c = pausable(SIZE, "c", true);
	fill(of_a, SIZE, 1);
	fill(of_b, SIZE, 2);
	fill(of_c, SIZE, 3);
	EXPECT(tms_pause_tags(NULL, NULL), 0);
	EXPECT(tms_last_bytes(), 0);
	for (int nth = 1; nth <= 2; nth++) {
		sim_fail("cuMemUnmap", nth, 999);
		EXPECT(tms_pause_tags(a, b), 999);
		CHECK(filled(of_a, SIZE, 1) && filled(of_b, SIZE, 2));
		sim_fail("cuMemUnmap", nth, 999);
		EXPECT(tms_pause_tags(NULL, both), 999);
		CHECK(filled(of_a, SIZE, 1) && filled(of_b, SIZE, 2));
	}
	EXPECT(tms_pause_tags(both, b), 0); /* a tag in both lists is kept */
	EXPECT(tms_last_bytes(), 2 * SIZE);
	CHECK(filled(of_c, SIZE, 3));
	sim_fail("cuMemCreate", 2, 2);
	EXPECT(tms_resume_tags(both, 0), 2);
	EXPECT(tms_last_bytes(), 0);
	EXPECT(tms_resume_tags(NULL, 0), 0);
	EXPECT(tms_last_bytes(), 0);
	EXPECT(tms_resume_tags(both, -1), 1);
	EXPECT(tms_resume_tags(both, 0), 0);
	EXPECT(tms_last_bytes(), 2 * SIZE);
	CHECK(filled(of_a, SIZE, 1) && filled(of_b, SIZE, 2));
	EXPECT(tms_pause_tags(a, b), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(of_a, SIZE, 1) && !filled(of_b, SIZE, 2));
	EXPECT(cudaFree(of_a), 0);
	EXPECT(cudaFree(of_b), 0);
	EXPECT(cudaFree(of_c), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	count = argc > 2 ? atoi(argv[2]) : 0;
	CHECK(RUN_PART(argv[1], {"many", many}, {"limited", limited}, {"together", together}, {"odd", odd}));
	return 0;
}
