// The environment: how many devices, how much memory, which calls fail.
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/sim.h"

static uint64_t read_number(const char *name, uint64_t fallback, uint64_t low, uint64_t high)
{
	const char *text = getenv(name);
	if (!text || !*text)
		return fallback;
	char *end;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	static const char units[] = "KMGT";
	const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
	int shift = unit ? 10 * (int)(unit - units + 1) : 0;
	end += unit != NULL;
	if (end == text || *end || *text == '-' || errno || value > (ULLONG_MAX >> shift) ||
	    value << shift < low || value << shift > high) {
		sim_complain("%s=%s is not a number from %llu to %llu (K, M, G, T allowed); using %llu", name,
			     text, (unsigned long long)low, (unsigned long long)high,
			     (unsigned long long)fallback);
		return fallback;
	}
	return value << shift;
}

void sim_configure(void)
{
	sim.configured = true;
	sim.device_count = (int)read_number("CUDASIM_DEVICES", 1, 0, MAX_DEVICES);
	sim.memory = read_number("CUDASIM_MEMORY", 8ull << 30, 0, 1ull << 50);
	sim.granularity = read_number("CUDASIM_GRANULARITY", 2ull << 20, 4096, 1ull << 40);
	if (sim.granularity & (sim.granularity - 1)) {
		sim_complain("CUDASIM_GRANULARITY=%s is not a power of two; using 2097152",
			     getenv("CUDASIM_GRANULARITY"));
		sim.granularity = 2ull << 20;
	}
	sim.peers = read_number("CUDASIM_PEERS", 1, 0, 1);
	for (int i = 0; i < MAX_DEVICES; i++)
		sim.devices[i] = (struct device){.total = sim.memory, .fd = -1};
	const char *failures = getenv("CUDASIM_FAIL");
	if (failures && *failures)
		failures_parse(failures);
}
