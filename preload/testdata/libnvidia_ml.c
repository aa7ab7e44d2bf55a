/* An NVML of one device of 100 MiB, whose processes are those of PROCESSES: numbers with spaces between, each with as
 * many MiB as its place in the list. The device has the UUID, and the driver the version DRIVER. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>

enum { INSUFFICIENT_SIZE = 7, MIB = 1 << 20 };

int nvmlInit_v2(void)
{
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	return *count = 1, 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	return *device = (void *)1, (int)index;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length)
{
	return device && snprintf(text, length, "%s", getenv("UUID")) < 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
	return snprintf(text, length, "%s", getenv("DRIVER")) < 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory)
{
	memory->total = 100 * MIB;
	memory->used = memory->reserved = 10 * MIB;
	memory->available = 80 * MIB;
	return device == NULL;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
	memory[0] = 100 * MIB;
	memory[1] = 80 * MIB;
	memory[2] = 20 * MIB;
	return device == NULL;
}

static unsigned find(unsigned found[16])
{
	unsigned count = 0;
	int length = 0;
	for (const char *at = getenv("PROCESSES"); sscanf(at, "%u%n", &found[count], &length) == 1; at += length)
		count++;
	return count;
}

#define LISTS(name, type)                                                                          \
	int name(void *device, unsigned *count, type *list)                                        \
	{                                                                                          \
		unsigned found[16], room = *count;                                                 \
		*count = find(found);                                                              \
		for (unsigned i = 0; i < *count && i < room; i++)                                  \
			list[i] = (type){.pid = found[i], .used = (i + 1ull) * MIB};               \
		return !device ? 2 : *count > room ? INSUFFICIENT_SIZE : 0;                        \
	}
#define EACH(kind) \
	LISTS(nvmlDeviceGet##kind##RunningProcesses, struct older_process) \
	LISTS(nvmlDeviceGet##kind##RunningProcesses_v2, struct process) \
	LISTS(nvmlDeviceGet##kind##RunningProcesses_v3, struct process)
EACH(Compute)
EACH(Graphics)
EACH(MPSCompute)

int nvmlDeviceGetRunningProcessDetailList(void *device, struct details *all)
{
	unsigned found[16], room = all->count;
	all->count = find(found);
	for (unsigned i = 0; i < all->count && i < room; i++)
		all->list[i] = (struct detail){.pid = found[i], .used = (i + 1ull) * MIB};
	return !device ? 2 : all->count > room ? INSUFFICIENT_SIZE : 0;
}
