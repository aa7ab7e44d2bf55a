/* Memory freed beside memory in use (slack) stays where it is: it serves its tag and does not count as free. Nothing
 * live is touched because memory is short, in a region or outside. argument: how memory is made */
#include "host.h"

static bool by_driver;

static int make(void **pointer, size_t size)
{
	return by_driver ? cuMemAlloc_v2((uintptr_t *)pointer, size) : cudaMalloc(pointer, size);
}

static int unmake(void *pointer)
{
	return by_driver ? cuMemFree_v2((uintptr_t)pointer) : cudaFree(pointer);
}

static void *make_in(const char *tag, size_t size, int expected)
{
	void *pointer = NULL;
	tms_set_interesting_region(true);
	tms_set_current_tag(tag);
	EXPECT(make(&pointer, size), expected);
	tms_set_interesting_region(false);
	return pointer;
}

static uint64_t mapping_calls(void)
{
	return sim_stat("calls:cuMemCreate") + sim_stat("calls:cuMemMap") + sim_stat("calls:cuMemUnmap") +
	       sim_stat("calls:cuMemSetAccess") + sim_stat("calls:cuMemRelease") + sim_stat("calls:cuCtxRecordEvent");
}

int main(int argc, char **argv)
{
	by_driver = argc > 1 && strcmp(argv[1], "driver") == 0;
	EXPECT(cudaFree(NULL), 0); /* a context */
	void *a[8], *b = make_in("b", 200 * MIB, 0), *pointer = NULL;
	for (int i = 0; i < 8; i++)
		a[i] = make_in("a", 32 * MIB, 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume("a"), 0);
	fill(a[1], 32 * MIB, 7);
	size_t before = free_bytes();
	for (int i = 0; i < 8; i++)
		if (i != 1)
			EXPECT(unmake(a[i]), 0);
	EXPECT(free_bytes() - before, 6 * 32 * MIB); /* extents are 64 MiB: the one with a[1] stays */

	/* Others take all but 100 MiB. */
	void *hog = NULL;
	EXPECT(((int (*)(void **, size_t))simulator("cuMemAlloc_v2"))(&hog, free_bytes() - 100 * MIB), 0);
	uint64_t calls = mapping_calls();
	EXPECT(make(&pointer, (size_t)1 << 42), 2);
	EXPECT(make(&pointer, 120 * MIB), 2);
	EXPECT(mapping_calls(), calls);
	EXPECT(tms_resume("b"), 2);
	CHECK(strstr(tms_last_error(), "32.00 MiB of device 0 are slack") && strstr(tms_last_error(), "\"a\""));
	make_in("other", 120 * MIB, 2);
	CHECK(strstr(tms_last_error(), "slack"));
	CHECK(stats_say("\"slack_bytes\":33554432"));
	CHECK(filled(a[1], 32 * MIB, 7));

	/* It serves its tag, in other sizes too. */
	size_t left = free_bytes();
	void *parts[2] = {make_in("a", 20 * MIB, 0), make_in("a", 12 * MIB, 0)};
	EXPECT(free_bytes(), left);
	fill(parts[0], 20 * MIB, 20);
	fill(parts[1], 12 * MIB, 12);
	CHECK(filled(a[1], 32 * MIB, 7) && filled(parts[0], 20 * MIB, 20) && filled(parts[1], 12 * MIB, 12));
	for (int i = 0; i < 2; i++)
		EXPECT(unmake(parts[i]), 0);

	/* The next pause leaves it behind. */
	EXPECT(tms_pause("a"), 0);
	EXPECT(tms_last_bytes(), 64 * MIB);
	EXPECT(free_bytes(), left + 64 * MIB);
	EXPECT(tms_resume("a"), 0);
	EXPECT(tms_last_bytes(), 32 * MIB);
	EXPECT(tms_pause("a"), 0);
	EXPECT(tms_pause("a"), 0);
	EXPECT(tms_last_bytes(), 0);
	EXPECT(cudaFree(hog), 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(unmake(a[1]), 0);
	EXPECT(unmake(b), 0);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
