/* The library can take no more memory for its records of segments: it says so before none is left, and existing
 * segments can be paused, resumed and freed; then there is room again. */
#include "host.h"

#include <sys/resource.h>

enum { MOST = 1 << 21 };

int main(void)
{
	static void *blocks[MOST];
	void *more = NULL;
	tms_pool *pool = NULL;
	void *first = pausable(MIB, "first", true);
	fill(first, MIB, 1);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	pausable(MIB, "plain", false);
	EXPECT(tms_pool_create(&pool, "bfc", NULL, 0), 0);
	struct rlimit limit;
	EXPECT(getrlimit(RLIMIT_DATA, &limit), 0);
	limit.rlim_cur = MIB;
	EXPECT(setrlimit(RLIMIT_DATA, &limit), 0);
	int made = 0, code = 0;
	for (; made < MOST && code == 0; made += code == 0)
		code = tms_pool_malloc(pool, &blocks[made], 256, NULL);
	EXPECT(code, 304);
	CHECK(strstr(tms_last_error(), "bookkeeping is full"));
	CHECK(made > 10000);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&more, MIB), 304);
	tms_set_interesting_region(false);
	EXPECT(tms_pause("plain"), 0);
	EXPECT(tms_resume("plain"), 0);
	while (made > 0)
		EXPECT(tms_pool_free(pool, blocks[--made]), 0);
	EXPECT(tms_pool_destroy(pool), 0);
	tms_set_interesting_region(true);
	for (int i = 0; i < 10000 && (code = cudaMalloc(&more, MIB)) == 304; i++)
		usleep(20000); /* a full heap is searched ten times a second */
	EXPECT(code, 0);
	limit.rlim_cur = limit.rlim_max;
	EXPECT(setrlimit(RLIMIT_DATA, &limit), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(first, MIB, 1));
	return 0;
}
