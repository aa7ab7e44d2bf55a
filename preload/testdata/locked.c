/* A program whose memory is locked uses pausable memory: the library's reserve takes no memory. Ends with 77 where
 * memory cannot be locked. */
#include "host.h"

static long resident(void)
{
	long size, pages;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE);
}

int main(void)
{
	EXPECT(cudaFree(NULL), 0);
	if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
		return 77;
	long before = resident();
	void *memory = pausable(4096, "t", false);
	CHECK(resident() - before < (long)(32 * MIB));
	EXPECT(cudaFree(memory), 0);
	return 0;
}
