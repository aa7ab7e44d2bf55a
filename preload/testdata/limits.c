/* Limits that would make the Go runtime abort are refused with an error, and plain CUDA still works. */
#include "host.h"

#include <sys/resource.h>

static rlim_t used(void)
{
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "r");
	CHECK(statm);
	EXPECT(fscanf(statm, "%lu", &pages), 1);
	fclose(statm);
	return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	void *pointer = NULL;
	EXPECT(cudaMalloc(&pointer, 10), 0);
	struct rlimit limit = {0};
	int resource = strcmp(argv[1], "memory") == 0 ? RLIMIT_AS : RLIMIT_NPROC;
	if (resource == RLIMIT_NPROC && getuid() == 0 && (setgid(12345) || setuid(12345)))
		return 77; /* this limit does not bind root */
	EXPECT(getrlimit(resource, &limit), 0);
	rlim_t before = limit.rlim_cur;
	limit.rlim_cur = resource == RLIMIT_AS ? used() + 500 * MIB : 3;
	EXPECT(setrlimit(resource, &limit), 0);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 10), 304);
	CHECK(strstr(tms_last_error(), "ulimit"));
	EXPECT(threads(), 1);
	tms_set_interesting_region(false);
	EXPECT(cudaMalloc(&pointer, 10), 0);
	/* Raised, it works without a restart. */
	limit.rlim_cur = before;
	EXPECT(setrlimit(resource, &limit), 0);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 10), 0);
	EXPECT(cudaFree(pointer), 0);
	return 0;
}
