/* nvml has what NVML tells a program that has a limit: the limit as the memory of each device, and no processes of other
 * users. libtms_reach.so has dlsym answer with these functions; calls that the loader binds come here by themselves. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"
#include "symbols.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NVML_INSUFFICIENT_SIZE = 7, NVML_FUNCTION_NOT_FOUND = 13 };

struct memory { /* nvmlMemory_t */
	unsigned long long total, available, used;
};
struct newer_memory { /* nvmlMemory_v2_t */
	unsigned version;
	unsigned long long total, reserved, available, used;
};
struct process { /* nvmlProcessInfo_v1_t */
	unsigned pid;
	unsigned long long used;
};
struct newer_process { /* nvmlProcessInfo_v2_t, and nvmlProcessInfo_t from _v3 on */
	unsigned pid;
	unsigned long long used;
	unsigned parts[2];
};
struct detail { /* nvmlProcessDetail_v1_t */
	unsigned pid;
	unsigned long long used;
	unsigned parts[2];
	unsigned long long protected;
};
struct details { /* nvmlProcessDetailList_v1_t */
	unsigned version, mode, count;
	struct detail *list;
};

/* X(symbol, type, what is done besides) */
#define MEMORY(X) \
	X(nvmlDeviceGetMemoryInfo, struct memory, (void)0) \
	X(nvmlDeviceGetMemoryInfo_v2, struct newer_memory, info->reserved = 0)
#define LISTS(X) \
	X(nvmlDeviceGetComputeRunningProcesses, struct process) \
	X(nvmlDeviceGetComputeRunningProcesses_v2, struct newer_process) \
	X(nvmlDeviceGetComputeRunningProcesses_v3, struct newer_process) \
	X(nvmlDeviceGetGraphicsRunningProcesses, struct process) \
	X(nvmlDeviceGetGraphicsRunningProcesses_v2, struct newer_process) \
	X(nvmlDeviceGetGraphicsRunningProcesses_v3, struct newer_process) \
	X(nvmlDeviceGetMPSComputeRunningProcesses, struct process) \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v2, struct newer_process) \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v3, struct newer_process)
#define ALL(X) MEMORY(X) LISTS(X) X(nvmlDeviceGetRunningProcessDetailList)

enum {
#define X(symbol, ...) AT_##symbol,
	ALL(X)
#undef X
	AT_nvmlDeviceGetUUID,
	AT_nvmlSystemGetDriverVersion,
	FUNCTIONS
};
static const char *const names[FUNCTIONS] = {
#define X(symbol, ...) #symbol,
	ALL(X)
#undef X
	"nvmlDeviceGetUUID", "nvmlSystemGetDriverVersion"};
static void *_Atomic theirs[FUNCTIONS];

static void *real(int at)
{
	if (!atomic_load(&theirs[at]))
		atomic_store(&theirs[at], held_function(names[at], kept(forward_find(names[at]))));
	return atomic_load(&theirs[at]);
}

#define CALL(symbol, parameters, ...)                                                              \
	({                                                                                         \
		int(*real_) parameters = (int(*) parameters)real(AT_##symbol);                     \
		real_ ? real_(__VA_ARGS__) : NVML_FUNCTION_NOT_FOUND;                              \
	})

/* NVML has the driver's process numbers. In a container with numbers of its own they name no process of this user, or
 * by chance another one. */
static bool is_users(unsigned pid)
{
	char path[32];
	struct stat process;
	snprintf(path, sizeof path, "/proc/%u", pid);
	return stat(path, &process) == 0 && process.st_uid == geteuid();
}

/* What all processes of the user have of the device: a program without memory of its own asks for them, as nvidia-smi. */
static unsigned long long used_by_user(void *device)
{
	unsigned count = 0;
	unsigned long long used = 0;
	struct newer_process *list = NULL;
	int code = NVML_INSUFFICIENT_SIZE;
	for (int tries = 0; tries < 3 && code == NVML_INSUFFICIENT_SIZE; tries++) {
		unsigned room = count + 8; /* more may appear between two calls */
		free(list);
		list = malloc(room * sizeof *list);
		count = list ? room : 0;
		code = list ? CALL(nvmlDeviceGetComputeRunningProcesses_v2, (void *, unsigned *, struct newer_process *),
				   device, &count, list)
			    : NVML_FUNCTION_NOT_FOUND;
	}
	for (unsigned i = 0; code == SUCCESS && i < count; i++)
		if (list[i].used != ~0ull && is_users(list[i].pid)) /* NVML_VALUE_NOT_AVAILABLE */
			used += list[i].used;
	free(list);
	return used;
}

static void tell(void *device, unsigned long long *total, unsigned long long *available, unsigned long long *used)
{
	char uuid[96] = "";
	unsigned long long has = 0, limit = region_config.limit_bytes;
	if (go_now() == GO_AWAKE &&
	    CALL(nvmlDeviceGetUUID, (void *, char *, unsigned), device, uuid, sizeof uuid) == SUCCESS)
		(void)IN_GO((has = tmsHasBy(uuid), SUCCESS));
	if (has == 0)
		has = used_by_user(device);
	*total = *total < limit ? *total : limit;
	*used = has < *total ? has : *total;
	*available = *available < *total - *used ? *available : *total - *used;
}

#define TELLS(symbol, type, besides)                                                               \
	EXPORT int symbol(void *device, type *info)                                                \
	{                                                                                          \
		int code = CALL(symbol, (void *, type *), device, info);                           \
		if (code == SUCCESS && region_config.limit_bytes) {                                \
			tell(device, &info->total, &info->available, &info->used);                 \
			besides;                                                                   \
		}                                                                                  \
		return code;                                                                       \
	}
MEMORY(TELLS)

/* Some drivers 535 have a longer record in _v3, and later ones the shorter again. */
static bool has_other_records(int at)
{
	static _Atomic int is_535 = -1;
	char version[80] = "";
	if (strcmp(names[at] + strlen(names[at]) - 3, "_v3") != 0)
		return false;
	if (atomic_load(&is_535) < 0 &&
	    CALL(nvmlSystemGetDriverVersion, (char *, unsigned), version, sizeof version) == SUCCESS)
		atomic_store(&is_535, strncmp(version, "535.", 4) == 0);
	return atomic_load(&is_535) != 0;
}

#define LEAVES_OUT(symbol, type)                                                                   \
	EXPORT int symbol(void *device, unsigned *count, type *list)                               \
	{                                                                                          \
		int code = CALL(symbol, (void *, unsigned *, type *), device, count, list);        \
		if (code != SUCCESS || !region_config.limit_bytes || !list || has_other_records(AT_##symbol)) \
			return code;                                                               \
		unsigned left = 0;                                                                 \
		for (unsigned i = 0; i < *count; i++)                                              \
			if (is_users(list[i].pid))                                                 \
				list[left++] = list[i];                                            \
		*count = left;                                                                     \
		return code;                                                                       \
	}
LISTS(LEAVES_OUT)

EXPORT int nvmlDeviceGetRunningProcessDetailList(void *device, struct details *all)
{
	int code = CALL(nvmlDeviceGetRunningProcessDetailList, (void *, struct details *), device, all);
	bool first = code == SUCCESS && all->version == (sizeof *all | 1 << 24); /* later records may be longer */
	if (!first || !region_config.limit_bytes || !all->list)
		return code;
	unsigned left = 0;
	for (unsigned i = 0; i < all->count; i++)
		if (is_users(all->list[i].pid))
			all->list[left++] = all->list[i];
	all->count = left;
	return code;
}

/* Returns this library's function that goes on to found, or found. */
static __attribute__((noinline)) void *limited(const char *name, void *found)
{
	static void *const own[] = {
#define X(symbol, ...) (void *)symbol,
		ALL(X)
#undef X
	};
	for (int at = 0; at < AT_nvmlDeviceGetUUID; at++) {
		if (strcmp(names[at], name) != 0)
			continue;
		void *none = NULL;
		return atomic_compare_exchange_strong(&theirs[at], &none, found) || none == found ? own[at] : found;
	}
	return found;
}

static __attribute__((noinline)) void keep(void *function) /* apart, for its share of the stack */
{
	kept(function);
}

HIDDEN void *nvml_function(const char *name, void *found)
{
	if (!region_config.control && !region_config.limit_bytes)
		return NULL;
	keep(found);
	void *own = held_function(name, found);
	if (region_config.limit_bytes)
		own = limited(name, own);
	return own == found ? NULL : own;
}
