/* A backup for which the machine has no host memory is refused before anything is touched, and everything stays active;
 * without that segment the same call works. */
#include "host.h"

static size_t available(void)
{
	char line[200];
	unsigned long long kib = 0, sum = 0;
	FILE *meminfo = fopen("/proc/meminfo", "r");
	CHECK(meminfo);
	while (fgets(line, sizeof line, meminfo))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1 || sscanf(line, "SwapFree: %llu", &kib) == 1)
			sum += kib;
	fclose(meminfo);
	return (size_t)sum << 10;
}

int main(void)
{
	void *small = pausable(3 * MIB, "short", true), *large = pausable(available() + 4096 * MIB, "short", true);
	fill(small, 3 * MIB, 1);
	fill(large, 3 * MIB, 2);
	size_t during = free_bytes();
	EXPECT(tms_pause(NULL), 304);
	CHECK(strstr(tms_last_error(), "host memory") && strstr(tms_last_error(), " are needed and ") &&
	      strstr(tms_last_error(), " are available; "));
	EXPECT(tms_prepare(NULL, true), 304);
	EXPECT(free_bytes(), during);
	CHECK(filled(small, 3 * MIB, 1) && filled(large, 3 * MIB, 2));
	EXPECT(sim_stat("registered_bytes"), 0);
	EXPECT(cudaFree(large), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(small, 3 * MIB, 1));
	return 0;
}
