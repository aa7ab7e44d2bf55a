/* A region takes no allocation of an excluded thread, or of a library listed in TMS_EXCLUDE. Called as: excluded
 * LIBRARY WHETHER-IT-IS-LISTED */
#include "host.h"

static size_t held(void)
{
	return sim_stat("handle_bytes");
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *pointer = NULL;
	CHECK(library);
	int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "keeper_malloc");
	CHECK(allocate);
	bool is_listed = strcmp(argv[2], "listed") == 0;

	tms_set_interesting_region(true);
	EXPECT(allocate(&pointer, 4 * MIB), 0);
	EXPECT(held(), is_listed ? 0 : 4 * MIB);
	EXPECT(cudaFree(pointer), 0);
	EXPECT(cudaMalloc(&pointer, 4 * MIB), 0); /* the program itself is not listed */
	EXPECT(held(), 4 * MIB);
	EXPECT(cudaFree(pointer), 0);

	/* Excluded in this region, and in a region that is entered while it is excluded. */
	tms_set_excluded(true);
	CHECK(tms_get_excluded() && tms_get_interesting_region());
	for (int i = 0; i < 2; i++) {
		EXPECT(cudaMalloc(&pointer, 4 * MIB), 0);
		EXPECT(held(), 0);
		EXPECT(cudaFree(pointer), 0);
		tms_set_interesting_region(false);
		tms_set_interesting_region(true);
	}
	tms_set_interesting_region(false);
	tms_set_excluded(false);
	CHECK(!tms_get_interesting_region());
	EXPECT(cudaMalloc(&pointer, 4 * MIB), 0);
	EXPECT(held(), 0);
	EXPECT(cudaFree(pointer), 0);
	tms_set_excluded(true);
	tms_set_interesting_region(true);
	tms_set_excluded(false);
	EXPECT(cudaMalloc(&pointer, 4 * MIB), 0);
	EXPECT(held(), 4 * MIB);
	EXPECT(cudaFree(pointer), 0);
	return 0;
}
