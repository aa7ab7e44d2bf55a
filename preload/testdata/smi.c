/* Asks NVML as nvidia-smi does: it opens the library and takes functions by dlsym, and uses no CUDA. It prints, for each
 * device, MiB: total, used and free, and the processes with what each has. Called as: smi VERSION, of the lists. */
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int list_processes(void *device, unsigned *count, void *list);

static void *library;

static void *function(const char *name)
{
	void *found = dlsym(library, name);
	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return found;
}

#define CALL(name, parameters, ...)                                                                \
	do {                                                                                       \
		int code = ((int(*) parameters)function(name))(__VA_ARGS__);                       \
		if (code) {                                                                        \
			fprintf(stderr, "%s: %d\n", name, code);                                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void print_processes(void *device, const char *kind, const char *version)
{
	char name[80];
	unsigned count = 0;
	snprintf(name, sizeof name, "nvmlDeviceGet%sRunningProcesses%s", kind, version);
	list_processes *list = (list_processes *)function(name);
	int code = list(device, &count, NULL);
	if (code == 0)
		return;
	count += 5; /* as pynvml */
	struct process *all = calloc(count, sizeof *all);
	code = list(device, &count, all);
	if (code != 0)
		exit(code);
	for (unsigned i = 0; i < count; i++) {
		struct older_process *older = &((struct older_process *)all)[i];
		printf(" %s:%u:%llu", kind, *version ? all[i].pid : older->pid,
		       (*version ? all[i].used : older->used) >> 20);
	}
	free(all);
}

static void print_details(void *device)
{
	struct detail found[16];
	struct details all = {sizeof all | 1 << 24, 0, 16, found};
	CALL("nvmlDeviceGetRunningProcessDetailList", (void *, struct details *), device, &all);
	for (unsigned i = 0; i < all.count; i++)
		printf(" Detail:%u:%llu", found[i].pid, found[i].used >> 20);
}

int main(int argc, char **argv)
{
	unsigned count = 0;
	const char *version = argc > 1 ? argv[1] : "_v3";
	library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	if (!library)
		return 1;
	CALL("nvmlInit_v2", (void));
	CALL("nvmlDeviceGetCount_v2", (unsigned *), &count);
	for (unsigned i = 0; i < count; i++) {
		void *device;
		struct memory memory = {.version = sizeof memory | 2 << 24};
		CALL("nvmlDeviceGetHandleByIndex_v2", (unsigned, void **), i, &device);
		CALL("nvmlDeviceGetMemoryInfo_v2", (void *, struct memory *), device, &memory);
		printf("%u: %llu %llu %llu", i, memory.total >> 20, memory.used >> 20, memory.available >> 20);
		print_processes(device, "Compute", version);
		print_processes(device, "Graphics", version);
		print_processes(device, "MPSCompute", version);
		if (argc > 1)
			print_details(device);
		printf("\n");
	}
	return 0;
}
