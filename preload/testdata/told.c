/* What a program is told of a device's memory. Called as: told limited|bound|own|generous|second|part|pooled
 * "with reach"|"without reach"
 * The device has 100 MiB, and where there is a limit, that is 40 MiB. */
#include "host.h"

int cuDeviceTotalMem_v2(size_t *, int);
int cuMemGetInfo_v2(size_t *, size_t *);
#ifdef OLDER
int cudaGetDeviceProperties_v2(void *, int);
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#else
int cudaGetDeviceProperties(void *, int);
#endif
__asm__(".weak nvmlInit_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2, "
	"nvmlDeviceGetComputeRunningProcesses_v2");
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, void *);
int nvmlDeviceGetMemoryInfo_v2(void *, void *);

static bool reaches;

/* The driver's function as a program finds it by dlsym. */
static void *found(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *function;
	CHECK(library && (function = dlsym(library, name)));
	return function;
}

struct properties {
	char before[288];
	size_t total, after[128];
};

static void expect_total(size_t mib)
{
	struct properties properties;
	size_t bytes = 0;
	EXPECT(cudaGetDeviceProperties(&properties, 0), 0);
	EXPECT(properties.total, mib * MIB);
	EXPECT(cuDeviceTotalMem_v2(&bytes, 0), 0);
	EXPECT(bytes, mib * MIB);
	EXPECT(((int (*)(size_t *, int))found("cuDeviceTotalMem_v2"))(&bytes, 0), 0);
	EXPECT(bytes, reaches ? mib * MIB : 100 * MIB);
}

static void expect(size_t available, size_t total)
{
	size_t is[2];
	void *by_name = NULL;
	int status;
	EXPECT(cudaMemGetInfo(&is[0], &is[1]), 0);
	EXPECT(is[0], available * MIB);
	EXPECT(is[1], total * MIB);
	EXPECT(cuMemGetInfo_v2(&is[0], &is[1]), 0);
	EXPECT(is[0], available * MIB);
	EXPECT(is[1], total * MIB);
	EXPECT(cuGetProcAddress_v2("cuMemGetInfo", &by_name, 12000, 0, &status), 0);
	EXPECT(((int (*)(size_t *, size_t *))by_name)(&is[0], &is[1]), 0);
	EXPECT(is[0], available * MIB);
	EXPECT(((int (*)(size_t *, size_t *))found("cuMemGetInfo_v2"))(&is[0], &is[1]), 0);
	EXPECT(is[1], reaches ? total * MIB : 100 * MIB);
	expect_total(total);
}

struct memory {
	unsigned long long total, available, used;
};
struct newer_memory {
	unsigned version;
	unsigned long long total, reserved, available, used;
};

/* As pynvml and go-nvml ask, or by functions that the loader has bound. */
static void nvml_says(bool bound, unsigned index, size_t total, size_t available, size_t used)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
	CHECK(library);
#define FIND(name) (bound ? (typeof(&name))name : (typeof(&name))dlsym(library, #name))
	struct memory memory;
	struct newer_memory newer = {.version = sizeof newer | 2 << 24};
	EXPECT(FIND(nvmlInit_v2)(), 0);
	EXPECT(FIND(nvmlDeviceGetHandleByIndex_v2)(index, &device), 0);
	EXPECT(FIND(nvmlDeviceGetMemoryInfo)(device, &memory), 0);
	EXPECT(FIND(nvmlDeviceGetMemoryInfo_v2)(device, &newer), 0);
	EXPECT(memory.total, total * MIB);
	EXPECT(memory.available, available * MIB);
	EXPECT(memory.used, used * MIB);
	EXPECT(newer.total, memory.total);
	EXPECT(newer.available, memory.available);
	EXPECT(newer.used, memory.used);
}

static void limited(void)
{
	void *more = NULL;
	expect(40, 40);
	void *memory = pausable(16 * MIB, "t", true);
	expect(24, 40);
	if (reaches)
		nvml_says(false, 0, 40, 24, 16);
	EXPECT(tms_pause("t"), 0);
	expect(24, 40); /* paused memory counts */
	EXPECT(cudaMalloc(&more, 90 * MIB), 0); /* CUDA's own does not, but what is free bounds what can be had */
	expect(10, 40);
	if (reaches)
		nvml_says(false, 0, 40, 10, 16);
	EXPECT(cudaFree(more), 0);
	EXPECT(tms_resume("t"), 0);
	for (int i = 0; i < 2; i++)
		IN_REGION(FAILS(cudaMalloc(&more, 26 * MIB), 2, "it has 16.00 MiB of 40.00 MiB"));
	CHECK(stats_say("\"total_bytes\":104857600"));
	CHECK(stats_say("\"limit_bytes\":41943040,\"limit_refused\":2"));
	EXPECT(cudaFree(memory), 0);
	expect(40, 40);
	void *slabs[2] = {pausable(100, "t", false), pausable(3 * MIB, "t", false)};
	expect(34, 40); /* in granules */
	EXPECT(cudaFree(slabs[0]), 0);
	EXPECT(cudaFree(slabs[1]), 0);
}

/* The loader has bound the functions of NVML to this library's. */
static void bound(void)
{
	void *memory = pausable(16 * MIB, "t", true);
	nvml_says(true, 0, 40, 24, 16);
	if (!reaches)
		nvml_says(false, 0, 100, 84, 16);
	EXPECT(cudaFree(memory), 0);
}

/* Without a limit, all figures are NVIDIA's. */
static void own(void)
{
	void *memory = pausable(16 * MIB, "t", true);
	expect(84, 100);
	nvml_says(false, 0, 100, 84, 16);
	Dl_info info;
	CHECK(dladdr(dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), "nvmlDeviceGetMemoryInfo"), &info));
	CHECK(strstr(info.dli_fname, "libnvidia-ml"));
	EXPECT(cudaFree(memory), 0);
}

/* The program sees the second of two devices alone. */
static void second(void)
{
	void *memory = pausable(16 * MIB, "t", true);
	expect(24, 40);
	nvml_says(false, 0, 40, 40, 0);
	nvml_says(false, 1, 40, 24, 16);
	EXPECT(cudaFree(memory), 0);
}

/* The program sees a part of a GPU, and NVML shows that alone. */
static void part(void)
{
	void *memory = pausable(16 * MIB, "t", true);
	expect(24, 40);
	nvml_says(false, 0, 40, 24, 16);
	EXPECT(cudaFree(memory), 0);
}

/* A limit above the device's memory is none. */
static void generous(void)
{
	void *memory = pausable(16 * MIB, "t", true);
	expect(84, 100);
	EXPECT(cudaFree(memory), 0);
}

/* A pool gives back what it only caches before the limit refuses an allocation. */
static void pooled(void)
{
	void *memory = pausable(30 * MIB, "t", true);
	EXPECT(cudaFree(memory), 0);
	memory = pausable(36 * MIB, "t", true);
	IN_REGION(FAILS(cudaMalloc(&memory, 8 * MIB), 2, "40.00 MiB total capacity"));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	reaches = strcmp(argv[2], "with reach") == 0;
	EXPECT(cudaFree(NULL), 0);
	CHECK(RUN_PART(argv[1], {"limited", limited}, {"bound", bound}, {"own", own}, {"generous", generous}, {"second", second}, {"part", part}, {"pooled", pooled}));
	return 0;
}
