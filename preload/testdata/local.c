/* libcudart arrives late and with RTLD_LOCAL, as Python extensions bring it: calls of a library
 * that links it still come through, and reach the real functions. Without any libcudart: a clear code. */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
	int (*release)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");
	CHECK(allocate && release);
	void *pointer = NULL;
	EXPECT(allocate(&pointer, 10), 302);
	tms_set_interesting_region(true);
	EXPECT(allocate(&pointer, 10), 302);
	CHECK(strstr(tms_last_error(), "libcudart"));
	tms_set_interesting_region(false);

	CHECK(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL));
	CHECK(!dlsym(RTLD_DEFAULT, "cudaMemset"));
	EXPECT(allocate(&pointer, 10), 0);
	EXPECT(release(pointer), 0);
	tms_set_interesting_region(true);
	EXPECT(allocate(&pointer, 10), 0);
	EXPECT(sim_stat("handles"), 1);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(release(pointer), 0);
	return 0;
}
