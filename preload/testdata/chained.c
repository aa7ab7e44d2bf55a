/* With another interposer before or after ours the chain holds: each sees the calls that reach it. Called as: chained
 * before|after */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int *mallocs = dlsym(RTLD_DEFAULT, "interposed_mallocs"), *frees = dlsym(RTLD_DEFAULT, "interposed_frees");
	CHECK(mallocs && frees);
	bool before = strcmp(argv[1], "before") == 0; /* before ours: it also sees calls in regions */
	void *real = NULL, *ours;
	EXPECT(cudaMalloc(&real, 100), 0);
	EXPECT(*mallocs, 1);
	ours = pausable(MIB, "chain", true);
	EXPECT(*mallocs, before ? 2 : 1);
	fill(ours, MIB, 3);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(ours, MIB, 3));
	EXPECT(cudaFree(ours), 0);
	EXPECT(*frees, before ? 1 : 0);
	EXPECT(cudaFree(real), 0);
	EXPECT(*frees, before ? 2 : 1);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
