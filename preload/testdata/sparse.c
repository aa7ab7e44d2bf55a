/* A pause keeps parts of memory: the live parts, and no blocks of zeros. */
#include "host.h"

static bool all_zero(const void *device, size_t size)
{
	unsigned char *bytes = malloc(size);
	CHECK(bytes);
	EXPECT(cudaMemcpy(bytes, device, size, 2), 0);
	bool zero = true;
	for (size_t i = 0; i < size; i++)
		zero = zero && bytes[i] == 0;
	free(bytes);
	return zero;
}

int main(void)
{
	char *sparse = NULL, *cache = NULL;
	EXPECT(tms_set_backup("sparse"), 0);
	CHECK(strcmp(tms_get_backup(), "sparse") == 0);
	IN_REGION(EXPECT(cudaMalloc((void **)&sparse, 64 * MIB), 0));
	EXPECT(tms_set_backup("host"), 0);
	IN_REGION(EXPECT(cudaMalloc((void **)&cache, 64 * MIB), 0));
	fill(sparse, 64 * MIB, 1);
	EXPECT(cudaMemset(sparse + 4 * MIB, 0, 58 * MIB), 0);
	fill(cache, 64 * MIB, 1);
	const tms_range live[] = {{32 * MIB, 2 * MIB}, {0, 3 * MIB}};
	EXPECT(tms_live(cache, 64 * MIB, live, 2), 0);
	EXPECT(tms_pause(NULL), 0);
	CHECK(stats_say("\"host_bytes\":11534336,")); /* 4 + 2 + 5 MiB */
	FAILS(tms_live(cache, 64 * MIB, live, 2), 1, "is paused");
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(sparse, 4 * MIB, 1));
	CHECK(all_zero(sparse + 4 * MIB, 58 * MIB));
	CHECK(filled(cache, 3 * MIB, 1));
	CHECK(!filled(cache, 64 * MIB, 1)); /* fresh memory of the simulator is zero */
	fill(cache, 64 * MIB, 2);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(cache, 64 * MIB, 2)); /* it counts for one pause */

	EXPECT(tms_live(cache, 64 * MIB, NULL, 0), 0);
	EXPECT(tms_live(NULL, 0, NULL, 0), 0); /* all is live again */
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(cache, 64 * MIB, 2));
	EXPECT(tms_live(cache, 64 * MIB, NULL, 0), 0);
	FAILS(tms_live(cache, 8, NULL, 1), 1, "ranges is NULL");
	FAILS(tms_live(cache, 33 * MIB, live, 2), 1, "reaches past the");
	FAILS(tms_live(&cache, 8, NULL, 0), 1, "is in no region");
	EXPECT(tms_pause(NULL), 0);
	CHECK(stats_say("\"host_bytes\":6291456,"));
	EXPECT(tms_resume(NULL), 0);
	return 0;
}
