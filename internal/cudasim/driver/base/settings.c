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

struct device_name device_name(int place)
{
	struct device_name name;
	const char *from = sim.settings.names, *next;
	for (; place > 0 && (next = strchr(from, ',')); place--)
		from = next + 1;
	snprintf(name.text, sizeof name.text, "%.*s", (int)strcspn(from, ","), from);
	return name;
}

void uuid_write(CUuuid *uuid, int place)
{
	memcpy(uuid->bytes, "cudasim-device-", 15);
	uuid->bytes[15] = (unsigned char)place;
}

static bool is_part(int place)
{
	return strstr(device_name(place).text, " MIG ");
}

void part_uuid_write(CUuuid *uuid, int place)
{
	uuid_write(uuid, place);
	if (is_part(place))
		memcpy(uuid->bytes, "a-part-of-a-gpu", 15);
}

struct uuid_text uuid_text(const char *kind, const CUuuid *uuid)
{
	struct uuid_text text;
	snprintf(text.text, sizeof text.text, "%s", kind);
	for (int i = 0; i < 16; i++)
		sprintf(text.text + strlen(text.text), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			(unsigned char)uuid->bytes[i]);
	return text;
}

// Returns which of the listed devices an entry of CUDA_VISIBLE_DEVICES names, by its place in the list or by the
// beginning of its UUID, or -1.
static int find_named(const char *entry, const int *listed, int count)
{
	char *end;
	long number = strtol(entry, &end, 10);
	if (end > entry && !*end)
		return number >= 0 && number < count ? (int)number : -1;
	if (strlen(entry) <= strlen("GPU-"))
		return -1;
	for (int i = 0; i < count; i++) {
		CUuuid gpu, part;
		uuid_write(&gpu, listed[i]);
		part_uuid_write(&part, listed[i]);
		if (!strncmp(uuid_text("GPU-", &gpu).text, entry, strlen(entry)) ||
		    (is_part(listed[i]) && !strncmp(uuid_text("MIG-", &part).text, entry, strlen(entry))))
			return i;
	}
	return -1;
}

// Keeps those of the listed devices that a variable names, in its order, up to the first that does not exist. A variable
// that names none of them is meant for other GPUs, and changes nothing.
static void keep_named(const char *variable, int *listed, int *count)
{
	const char *text = getenv(variable);
	char *rest, *copy = text ? strdup(text) : NULL;
	int kept[MAX_DEVICES], kept_count = 0;
	for (char *entry = copy ? strtok_r(copy, ", ", &rest) : NULL; entry; entry = strtok_r(NULL, ", ", &rest)) {
		int at = find_named(entry, listed, *count);
		for (int i = 0; at >= 0 && i < kept_count; i++)
			at = kept[i] == listed[at] ? -1 : at;
		if (at < 0)
			break;
		kept[kept_count++] = listed[at];
	}
	free(copy);
	if (!kept_count)
		return;
	memcpy(listed, kept, sizeof kept[0] * (size_t)kept_count);
	*count = kept_count;
}

static void devices_read(void)
{
	sim.settings.shown_count = sim.settings.machine_count;
	for (int i = 0; i < MAX_DEVICES; i++)
		sim.settings.shown[i] = i;
	keep_named("CUDASIM_CONTAINER", sim.settings.shown, &sim.settings.shown_count);
	memcpy(sim.settings.places, sim.settings.shown, sizeof sim.settings.places);
	sim.settings.device_count = sim.settings.shown_count;
	const char *order = getenv("CUDA_DEVICE_ORDER");
	if (!order || strcmp(order, "PCI_BUS_ID"))
		keep_named("CUDASIM_FASTEST", sim.settings.places, &sim.settings.device_count);
	keep_named("CUDA_VISIBLE_DEVICES", sim.settings.places, &sim.settings.device_count);
	for (int i = sim.settings.device_count; i < MAX_DEVICES; i++)
		sim.settings.places[i] = NOWHERE;
}

void settings_read(void)
{
	sim.settings.machine_count = (int)read_number("CUDASIM_DEVICES", 1, 0, MAX_DEVICES);
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
	sim.settings.uncounted = read_number("CUDASIM_UNCOUNTED", 0, 0, 1);
	const char *name = getenv("CUDASIM_NAME");
	snprintf(sim.settings.names, sizeof sim.settings.names, "%s", name && *name ? name : "cudasim");
	devices_read();
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

bool peers(CUdevice device, CUdevice other)
{
	return device != other && sim.settings.peers;
}
