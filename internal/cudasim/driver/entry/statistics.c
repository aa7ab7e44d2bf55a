// cudasim_stat: numbers of the state, by name.
#include <stdlib.h>
#include <string.h>

#include "cudasim.h"
#include "entry/gate.h"

static uint64_t device_stat(const char *number, char which)
{
	char *end;
	unsigned long device = strtoul(number, &end, 10);
	if (end == number || *end || device >= (unsigned long)sim.settings.device_count)
		return UINT64_MAX;
	uint64_t total = memory.devices[device].total;
	return which == 't' ? total : which == 'f' ? budget_free((int)device) : total - budget_free((int)device);
}

static uint64_t stat(const char *name)
{
	const struct statistics *s = &sim.statistics;
	static const struct {
		const char *count, *bytes;
	} amounts[KINDS] = {
		[HANDLES] = {"handles", "handle_bytes"},
		[RESERVATIONS] = {"reservations", "reserved_bytes"},
		[MAPPINGS] = {"mappings", "mapped_bytes"},
		[ALLOCATIONS] = {"allocations", "allocation_bytes"},
		[REGISTRATIONS] = {"registrations", "registered_bytes"},
		[HOST_ALLOCATIONS] = {"host_allocations", "host_bytes"},
	};
	const struct {
		const char *name;
		uint64_t value;
	} values[] = {
		{"pinned_bytes", s->amounts[REGISTRATIONS].bytes + s->amounts[HOST_ALLOCATIONS].bytes},
		{"contexts", s->objects[CONTEXT]},
		{"streams", s->objects[STREAM]},
		{"events", s->objects[EVENT]},
		{"graphs", s->objects[GRAPH]},
		{"graph_execs", s->objects[GRAPH_EXEC]},
		{"libraries", s->objects[LIBRARY]},
		{"pending", queue_count},
		{"devices", (uint64_t)sim.settings.device_count},
		{"granularity", sim.settings.granularity},
	};
	for (int i = 0; i < KINDS; i++)
		if (!strcmp(amounts[i].count, name) || !strcmp(amounts[i].bytes, name))
			return strcmp(amounts[i].bytes, name) ? s->amounts[i].count : s->amounts[i].bytes;
	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		if (!strcmp(values[i].name, name))
			return values[i].value;
	if (!strncmp(name, "calls:", 6))
		return gate_calls(name + 6);
	if (!strncmp(name, "total:", 6))
		return device_stat(name + 6, 't');
	if (!strncmp(name, "used:", 5))
		return device_stat(name + 5, 'u');
	if (!strncmp(name, "free:", 5))
		return device_stat(name + 5, 'f');
	return UINT64_MAX;
}

EXPORT uint64_t cudasim_stat(const char *name)
{
	pthread_mutex_lock(&sim.lock);
	gate_start();
	uint64_t result = stat(name);
	pthread_mutex_unlock(&sim.lock);
	return result;
}
