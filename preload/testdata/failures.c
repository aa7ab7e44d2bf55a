/* One driver call fails in the middle of a pause or resume: the failure is reported, everything is as before with its
 * contents, and the same call then works. */
#include "host.h"

enum { COUNT = 6 };
static void *segment[COUNT];
static size_t before, during;

static void all_active(void)
{
	for (unsigned i = 0; i < COUNT; i++)
		CHECK(filled(segment[i], 3 * MIB, i));
	EXPECT(free_bytes(), during);
}

static void pause_fails(const char *function, int nth, int code, int expected)
{
	sim_fail(function, nth, code);
	EXPECT(tms_pause(NULL), expected);
	CHECK(strstr(tms_last_error(), "pause"));
	all_active();
	EXPECT(tms_pause(NULL), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_resume(NULL), 0);
	all_active();
}

static void resume_fails(const char *function, int nth, int code, int expected)
{
	EXPECT(tms_pause(NULL), 0);
	sim_fail(function, nth, code);
	EXPECT(tms_resume(NULL), expected);
	CHECK(strstr(tms_last_error(), "resume"));
	EXPECT(free_bytes(), before);
	EXPECT(tms_resume(NULL), 0);
	all_active();
}

int main(void)
{
	before = free_bytes();
	for (unsigned i = 0; i < COUNT; i++) {
		segment[i] = pausable(3 * MIB, i % 2 ? "odd" : "even", true);
		fill(segment[i], 3 * MIB, i);
	}
	during = free_bytes();
	for (int nth = 1; nth <= COUNT; nth++) {
		pause_fails("cuMemUnmap", nth, 999, 999);
		resume_fails("cuMemCreate", nth, 2, 2);
		resume_fails("cuMemMap", nth, 1, 1);
		resume_fails("cuMemSetAccess", nth, 999, 999);
		resume_fails("cuMemcpyHtoDAsync", nth, 999, 999);
		pause_fails("cuMemcpyDtoHAsync", nth, 999, 999);
	}
	pause_fails("cuCtxRecordEvent", 1, 999, 999);
	pause_fails("cuEventSynchronize", 1, 999, 999);
	pause_fails("cuMemHostRegister", 1, 2, 304);
	pause_fails("cuStreamCreate", 1, 2, 2);
	resume_fails("cuStreamCreate", 1, 2, 2);

	/* Releasing fails: the segment is paused, the error says that the rest is held, and another pause releases
	 * it. */
	sim_fail("cuMemRelease", 3, 999);
	FAILS(tms_pause(NULL), 999, "pause again");
	EXPECT(before - free_bytes(), 4 * MIB);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_resume(NULL), 0);
	all_active();

	/* A real shortage: another owner takes the memory while it is free. */
	EXPECT(tms_pause("odd"), 0);
	void *other = NULL;
	EXPECT(cudaMalloc(&other, free_bytes() - 6 * MIB), 0);
	FAILS(tms_resume("odd"), 2, " free and ");
	EXPECT(cudaFree(other), 0);
	EXPECT(tms_resume("odd"), 0);
	all_active();

	/* Freeing fails: the segment is still there, and the free can be tried again. */
	sim_fail("cuMemUnmap", 1, 999);
	EXPECT(cudaFree(segment[0]), 999);
	CHECK(filled(segment[0], 3 * MIB, 0));
	/* Unmapped memory is gone: a refused release is made later, and is no error. */
	size_t held = free_bytes();
	sim_fail("cuMemRelease", 1, 999);
	sim_fail("cuMemRelease", 2, 999);
	EXPECT(cudaFree(segment[0]), 0);
	EXPECT(free_bytes(), held);
	EXPECT(cudaFree(segment[0]), 1);
	for (int i = 1; i < COUNT; i++)
		EXPECT(cudaFree(segment[i]), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(free_bytes(), before);

	/* Allocating fails at each step and leaves nothing behind. */
	static const char *const steps[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
	for (int i = 0; i < 3; i++) {
		void *pointer = NULL;
		tms_set_interesting_region(true);
		sim_fail(steps[i], 1, 2);
		EXPECT(cudaMalloc(&pointer, MIB), 2);
		CHECK(!pointer);
		EXPECT(cudaMalloc(&pointer, MIB), 0);
		EXPECT(cudaFree(pointer), 0);
	}
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(sim_stat("mappings"), 0);
	return 0;
}
