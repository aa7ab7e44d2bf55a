// The simulated devices as NVML shows them: the functions that internal/machine/nvml calls, and those by which
// nvidia-smi and pynvml begin and list processes, with NVML's names, numbers and layouts. This library reads what each
// process of the user holds from its page (driver/base/process.h), and uses no CUDA. It shows the processes with this
// process's CUDASIM_SHARED. Without one it shows the processes that share with no other, as if they shared one set of
// devices, which can then be more than full.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/process.h"

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_TIMEOUT = 10,
};

typedef struct device *nvmlDevice_t; // its index here, and 1; turned with CUDASIM_NVML_TURNS

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;

static int initialized; // how many times
static int file = -1; // CUDASIM_NVML_FILE, open while it is
static unsigned turn; // with CUDASIM_NVML_TURNS, one more at each first nvmlInit, and handles turn by it
static bool apart; // CUDASIM_NVML_TURNS=apart: the handles of one turn are none in another
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // a child of fork does not get it back

enum { APART = 1000 };

struct seen {
	int device_count;
	uint64_t memory, held;
	unsigned count;
};

// Adds what a process has, and holds of a device, to what was seen; lists it if there is room.
static void see(struct process_page *page, int process, int device, nvmlProcessInfo_v2_t *list, unsigned room, struct seen *seen)
{
	if (page->devices > seen->device_count)
		seen->device_count = page->devices;
	if (page->memory > seen->memory)
		seen->memory = page->memory;
	int own = 0; // the process's number of the device
	while (own < MAX_DEVICES && atomic_load(&page->places[own]) != device)
		own++;
	if (own == MAX_DEVICES || device >= page->devices || process_state(page) == CU_PROCESS_STATE_CHECKPOINTED)
		return;
	uint64_t bytes = atomic_load(&page->held[own]);
	seen->held += bytes;
	if (seen->count < room)
		list[seen->count] = (nvmlProcessInfo_v2_t){
			.pid = (unsigned)process,
			.used = bytes,
			.gpu_instance = UINT32_MAX,
			.compute_instance = UINT32_MAX,
		};
	seen->count++;
}

// Returns how much of a device is memory that outlives its makers: each piece is a file, locked as long as a process holds it
// (memory/budget.c).
static uint64_t outliving(int device)
{
	struct folder folder;
	char name[sizeof sim.settings.shared + 32];
	struct stat namespace;
	uint64_t held = 0;
	if (!*sim.settings.shared || stat("/proc/self/ns/pid", &namespace) || !folder_find(&folder))
		return 0;
	int length = snprintf(name, sizeof name, "%s.%lu.", sim.settings.shared, (unsigned long)namespace.st_ino);
	DIR *listing = opendir(folder.path);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		int whose = -1;
		unsigned long long size = 0;
		if (strncmp(entry->d_name, name, (size_t)length) ||
		    sscanf(entry->d_name + length, "%*u.%d.%llu.", &whose, &size) != 2 || whose != device)
			continue;
		int fd = openat(dirfd(listing), entry->d_name, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB))
			held += size;
		if (fd >= 0)
			close(fd);
	}
	if (listing)
		closedir(listing);
	return held;
}

// Looks at each process that this one may read, for one of the machine's devices. There are as many devices as the processes have, and as large; if there
// are no processes, those of the environment.
static struct seen look(int device, nvmlProcessInfo_v2_t *list, unsigned room)
{
	struct seen seen = {0};
	struct processes all;
	processes_open(&all);
	for (struct process_page *page; (page = processes_next(&all));) {
		if (!strcmp(page->shared, sim.settings.shared))
			see(page, all.process, device, list, room, &seen);
		process_release(page);
	}
	processes_close(&all);
	if (!seen.device_count)
		seen = (struct seen){.device_count = sim.settings.machine_count, .memory = sim.settings.memory};
	seen.held += outliving(device);
	return seen;
}

// Returns how many devices this process may see: with CUDASIM_CONTAINER those, or else all of the machine.
static unsigned count_shown(void)
{
	bool some = sim.settings.shown_count < sim.settings.machine_count || sim.settings.shown[0] != 0;
	return (unsigned)(some ? sim.settings.shown_count : look(0, NULL, 0).device_count);
}

static nvmlDevice_t handle_of(unsigned index, unsigned count)
{
	if (apart)
		return (nvmlDevice_t)(uintptr_t)(index + turn * APART + 1ul);
	return (nvmlDevice_t)(uintptr_t)(index < count ? (index + turn) % count + 1ul : index + 1ul);
}

// Finds which of the machine's devices a handle is. Each question looks at all processes once for it.
static nvmlReturn_t check(nvmlDevice_t device, const void *result, int *place)
{
	pthread_mutex_lock(&lock);
	bool begun = initialized > 0;
	pthread_mutex_unlock(&lock);
	if (!begun)
		return NVML_ERROR_UNINITIALIZED;
	unsigned count = result && device ? count_shown() : 0;
	for (unsigned index = 0; index < count; index++)
		if (handle_of(index, count) == device) {
			*place = sim.settings.shown[index];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT;
}

// Needs the loader's lock, if CUDASIM_NVML_LOADER names the function.
static void use_loader(const char *function)
{
	const char *named = getenv("CUDASIM_NVML_LOADER");
	if (named && !strcmp(named, function))
		dlclose(dlopen("libc.so.6", RTLD_NOW));
}

// The driver's NVML has files of the driver open from the first nvmlInit to the last nvmlShutdown.
EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	settings_read();
	use_loader("nvmlInit");
	pthread_mutex_lock(&lock);
	const char *path = getenv("CUDASIM_NVML_FILE"), *turns = getenv("CUDASIM_NVML_TURNS");
	if (!initialized++) {
		file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
		turn += turns != NULL;
		apart = turns && !strcmp(turns, "apart");
	}
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

// As pynvml begins; the simulator has nothing to do without devices.
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return nvmlInit_v2();
}

// It takes CUDASIM_NVML_SLOW milliseconds more.
EXPORT nvmlReturn_t nvmlShutdown(void)
{
	use_loader("nvmlShutdown");
	pthread_mutex_lock(&lock);
	bool begun = initialized > 0;
	if (begun && --initialized == 0 && file >= 0)
		close(file);
	const char *slow = getenv("CUDASIM_NVML_SLOW");
	if (begun && slow)
		usleep((unsigned)atoi(slow) * 1000);
	pthread_mutex_unlock(&lock);
	return begun ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	}
	return "Unknown Error";
}

// CUDASIM_DRIVER, or the version of the driver that the simulator was compared with.
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length)
{
	const char *version = getenv("CUDASIM_DRIVER");
	if (!initialized)
		return NVML_ERROR_UNINITIALIZED;
	if (!text)
		return NVML_ERROR_INVALID_ARGUMENT;
	int written = snprintf(text, length, "%s", version && *version ? version : "580.159.04");
	return (unsigned)written < length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	if (!initialized)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = count_shown();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	if (!initialized)
		return NVML_ERROR_UNINITIALIZED;
	unsigned count = device ? count_shown() : 0;
	if (index >= count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = handle_of(index, count);
	return NVML_SUCCESS;
}

static nvmlReturn_t write_text(char *text, unsigned length, const char *written)
{
	if (strlen(written) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(text, written, strlen(written) + 1);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length)
{
	int place;
	nvmlReturn_t result = check(device, text, &place);
	if (result != NVML_SUCCESS)
		return result;
	CUuuid uuid;
	uuid_write(&uuid, place);
	return write_text(text, length, uuid_text("GPU-", &uuid).text);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length)
{
	int place;
	nvmlReturn_t result = check(device, text, &place);
	if (result != NVML_SUCCESS)
		return result;
	return write_text(text, length, device_name(place).text);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
	int place;
	nvmlReturn_t result = check(device, info && info->version == (sizeof *info | 2u << 24) ? info : NULL, &place);
	if (result != NVML_SUCCESS)
		return result;
	struct seen seen = look(place, NULL, 0);
	info->total = seen.memory;
	info->reserved = 0;
	info->used = seen.held < info->total ? seen.held : info->total;
	info->free = info->total - info->used;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
	nvmlMemory_v2_t newer = {.version = sizeof newer | 2u << 24};
	int place;
	nvmlReturn_t result = check(device, info, &place);
	if (result == NVML_SUCCESS)
		result = nvmlDeviceGetMemoryInfo_v2(device, &newer);
	if (result == NVML_SUCCESS)
		*info = (nvmlMemory_t){newer.total, newer.free, newer.used};
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
						     nvmlProcessInfo_v2_t *processes)
{
	int place;
	nvmlReturn_t result = check(device, count && (processes || !*count) ? count : NULL, &place);
	if (result != NVML_SUCCESS)
		return result;
	unsigned room = *count;
	*count = look(place, processes, room).count;
	return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
						     nvmlProcessInfo_v2_t *processes)
{
	return nvmlDeviceGetComputeRunningProcesses_v2(device, count, processes);
}

// All processes compute, without MPS.
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
	int place;
	nvmlReturn_t result = check(device, count, &place);
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
						      nvmlProcessInfo_v2_t *processes)
{
	(void)processes;
	return no_processes(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
							nvmlProcessInfo_v2_t *processes)
{
	(void)processes;
	return no_processes(device, count);
}

// No event comes.
EXPORT nvmlReturn_t nvmlEventSetWait_v2(void *set, void *event, unsigned milliseconds)
{
	(void)set, (void)event;
	if (!initialized)
		return NVML_ERROR_UNINITIALIZED;
	usleep(milliseconds * 1000);
	return NVML_ERROR_TIMEOUT;
}
