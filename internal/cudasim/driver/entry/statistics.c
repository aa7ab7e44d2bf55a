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
	const struct {
		const char *name;
		uint64_t value;
	} values[] = {
		{"handles", s->handles},
		{"handle_bytes", s->handle_bytes},
		{"reservations", memory.reservations.count},
		{"reserved_bytes", s->reserved_bytes},
		{"mappings", s->mappings},
		{"mapped_bytes", s->mapped_bytes},
		{"allocations", s->allocations},
		{"allocation_bytes", s->allocation_bytes},
		{"registrations", s->registrations},
		{"registered_bytes", s->registered_bytes},
		{"host_allocations", s->host_allocations},
		{"host_bytes", s->host_bytes},
		{"pinned_bytes", s->registered_bytes + s->host_bytes},
		{"contexts", s->objects[CONTEXT]},
		{"streams", s->objects[STREAM]},
		{"events", s->objects[EVENT]},
		{"graphs", s->objects[GRAPH]},
		{"graph_execs", s->objects[GRAPH_EXEC]},
		{"libraries", s->objects[LIBRARY]},
		{"pending", queue_pending()},
		{"devices", (uint64_t)sim.settings.device_count},
		{"granularity", sim.settings.granularity},
	};
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
