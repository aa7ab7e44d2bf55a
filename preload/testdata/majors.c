/* Both majors of libcudart in one process, each opened by a library of its own (RTLD_LOCAL), or
 * globally: calls reach them, in and out of regions. Called as: majors local|global LIBRARY... */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	int mode = RTLD_NOW | (strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL);
	int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
	int (*release)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");
	for (int i = 2; i < argc; i++) {
		void *library = dlopen(argv[i], mode), *pointer = NULL, *ours = NULL;
		CHECK(library);
		int (*copy)(void *, const void *, size_t, int) =
			(int (*)(void *, const void *, size_t, int))dlsym(library, "cudaMemcpy");
		EXPECT(allocate(&pointer, 100), 0);
		tms_set_interesting_region(true);
		tms_set_enable_cpu_backup(true);
		EXPECT(allocate(&ours, 100), 0);
		tms_set_interesting_region(false);
		int in = 12345, out = 0;
		EXPECT(copy(pointer, &in, sizeof in, 1), 0);
		EXPECT(copy(ours, pointer, sizeof in, 3), 0);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(copy(&out, ours, sizeof out, 2), 0);
		EXPECT(out, in);
		EXPECT(release(pointer), 0);
		EXPECT(release(ours), 0);
	}
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
