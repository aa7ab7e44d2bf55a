/* libcudart arrives late and with RTLD_LOCAL, as Python extensions bring it, or globally; also both majors in one
 * process, each opened by a library of its own: calls of a library that links it come through, in and out of regions.
 * Without any libcudart: a clear code. Called as: majors local|global LIBRARY... */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	bool local = strcmp(argv[1], "local") == 0;
	__typeof__(cudaMalloc) *allocate = dlsym(RTLD_DEFAULT, "cudaMalloc");
	__typeof__(cudaFree) *release = dlsym(RTLD_DEFAULT, "cudaFree");
	void *pointer = NULL, *ours = NULL;
	CHECK(allocate && release);
	EXPECT(allocate(&pointer, 10), 302);
	IN_REGION(FAILS(allocate(&pointer, 10), 302, "libcudart"));
	for (int i = 2; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW | (local ? RTLD_LOCAL : RTLD_GLOBAL));
		CHECK(library && !dlsym(RTLD_DEFAULT, "cudaStreamCreate") == local);
		__typeof__(cudaMemcpy) *copy = dlsym(library, "cudaMemcpy");
		EXPECT(allocate(&pointer, 100), 0);
		tms_set_interesting_region(true);
		tms_set_enable_cpu_backup(true);
		EXPECT(allocate(&ours, 100), 0);
		tms_set_interesting_region(false);
		int in = 12345, out = 0;
		EXPECT(copy(pointer, &in, sizeof in, 1), 0);
		EXPECT(copy(ours, pointer, sizeof in, 3), 0);
		EXPECT(sim_stat("handles"), 1);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(sim_stat("handles"), 0);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(copy(&out, ours, sizeof out, 2), 0);
		EXPECT(out, in);
		EXPECT(release(pointer), 0);
		EXPECT(release(ours), 0);
	}
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
