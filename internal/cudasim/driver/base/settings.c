// The settings from the environment: how many devices, how much memory. gate.c reads the planned failures.
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/simulator.h"

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

void settings_read(void)
{
	sim.settings.device_count = (int)read_number("CUDASIM_DEVICES", 1, 0, MAX_DEVICES);
	sim.settings.memory = read_number("CUDASIM_MEMORY", 8ull << 30, 0, 1ull << 50);
	sim.settings.granularity = read_number("CUDASIM_GRANULARITY", 2ull << 20, 4096, 1ull << 40);
	if (sim.settings.granularity & (sim.settings.granularity - 1)) {
		sim_complain("CUDASIM_GRANULARITY=%s is not a power of two; using 2097152",
			     getenv("CUDASIM_GRANULARITY"));
		sim.settings.granularity = 2ull << 20;
	}
	sim.settings.context = read_number("CUDASIM_CONTEXT", 0, 0, 1ull << 40);
	sim.settings.code = read_number("CUDASIM_CODE", 0, 0, 1ull << 40);
	sim.settings.peers = read_number("CUDASIM_PEERS", 1, 0, 1);
	sim.settings.integrated = read_number("CUDASIM_INTEGRATED", 0, 0, 1);
	const char *name = getenv("CUDASIM_NAME");
	snprintf(sim.settings.names, sizeof sim.settings.names, "%s", name && *name ? name : "cudasim");
	const char *shared = getenv("CUDASIM_SHARED");
	size_t length = shared ? strlen(shared) : 0;
	*sim.settings.shared = 0;
	if (length >= sizeof sim.settings.shared || (length && strchr(shared, '/')))
		sim_complain("CUDASIM_SHARED=%s is not a name of up to 64 characters without /; "
			     "sharing with no process",
			     shared);
	else if (length)
		memcpy(sim.settings.shared, shared, length + 1);
}

bool device_valid(CUdevice device)
{
	return device >= 0 && device < sim.settings.device_count;
}

CUresult device_check(CUdevice device, const void *result)
{
	if (!result)
		return CUDA_ERROR_INVALID_VALUE;
	return device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

void uuid_write(CUuuid *uuid, int place)
{
	memcpy(uuid->bytes, "cudasim-device-", 15);
	uuid->bytes[15] = (unsigned char)place;
}

struct device_name device_name(int place)
{
	struct device_name name;
	const char *from = sim.settings.names, *next;
	for (; place > 0 && (next = strchr(from, ',')); place--)
		from = next + 1;
	snprintf(name.text, sizeof name.text, "%.*s", (int)strcspn(from, ","), from);
	return name;
}

bool peers(CUdevice device, CUdevice other)
{
	return device != other && sim.settings.peers;
}
