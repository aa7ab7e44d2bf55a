// NVML finds this process by its lock among more locks than the kernel tells of at one time, and looks through no other
// process for it.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../driver/abi/api.h"

enum { LOCKS = 128, BYTES = 4 << 20 };

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
} process_info;

static int looked_at_all;

// The library's calls come here, too.
DIR *opendir(const char *path)
{
	static DIR *(*real)(const char *);
	if (!real)
		real = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
	looked_at_all += !strcmp(path, "/proc");
	return real(path);
}

int main(void)
{
	for (int i = 0; i < LOCKS; i++)
		if (flock(memfd_create("lock", 0), LOCK_EX))
			return 1;
	CUdeviceptr memory;
	CUcontext context;
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&memory, BYTES))
		return 2;
	void *device, *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!nvml)
		return 3;
	int (*begin)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
	int (*find)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	int (*list)(void *, unsigned *, process_info *) =
		(int (*)(void *, unsigned *, process_info *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v2");
	process_info shown[2];
	unsigned count = 2;
	if (begin() || find(0, &device) || list(device, &count, shown))
		return 4;
	printf("%d %d %llu %d\n", count, shown[0].pid == (unsigned)getpid(), shown[0].used, looked_at_all);
	return 0;
}
