/* The ways in which a program finds the driver's functions: each leads to the library once, and gives memory that is
 * paused and comes back. Functions that are not the driver's, or are not asked of a handle, are found as
 * before. */
#include "host.h"

enum { TAKEN = 4 * MIB };

typedef __typeof__(cuMemAlloc_v2) allocate_function;
typedef __typeof__(cuMemFree_v2) free_function;
typedef __typeof__(cuGetProcAddress_v2) find_function;
typedef int allocate_async(uintptr_t *, size_t, void *);

static void *driver;

/* The tag's live bytes. */
static unsigned long live(const char *tag)
{
	char key[64], *json = stats(), *at;
	snprintf(key, sizeof key, "\"tag\":\"%s\"", tag);
	at = strstr(json, key);
	unsigned long bytes = at && (at = strstr(at, "\"live_bytes\":")) ? strtoul(strchr(at, ':') + 1, NULL, 10) : 0;
	free(json);
	return bytes;
}

static void goes_and_comes_back(const char *way, uintptr_t memory, bool pausable)
{
	unsigned char byte = 7;
	fprintf(stderr, "%s\n", way);
	EXPECT(live(way), pausable ? TAKEN : 0);
	EXPECT(cudaMemset((void *)memory, 9, TAKEN), 0);
	size_t before = free_bytes();
	EXPECT(tms_pause(way), 0);
	EXPECT(free_bytes() - before, pausable ? TAKEN : 0);
	EXPECT(tms_resume(way), 0);
	EXPECT(cudaMemcpy(&byte, (char *)memory + TAKEN - 1, 1, 2), 0);
	EXPECT(byte, 9);
}

typedef __typeof__(cuMemsetD32_v2) memset_function;
typedef __typeof__(cuLaunchKernel) launch_function;
static struct {
	memset_function *memset;
	launch_function *launch;
	void *kernel;
	uintptr_t memory;
	_Atomic int done;
} work;

static void *do_it(void *unused)
{
	uint64_t count = 1;
	unsigned number = 1;
	void *parameters[] = {&work.memory, &count, &number};
	EXPECT(cudaFree(unused), 0);
	if (work.memset)
		EXPECT(work.memset(work.memory, 5, 4), 0);
	if (work.launch)
		EXPECT(work.launch(work.kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), 0);
	work.done++;
	return NULL;
}

/* However the functions were found, they pass one gate. */
static void passes_the_gate(const char *way, memset_function *set, launch_function *launch)
{
	static void *library;
	unsigned word = 0;
	fprintf(stderr, "the gate: %s\n", way);
	if (!library) {
		__typeof__(cuLibraryLoadData) *load = dlsym(driver, "cuLibraryLoadData");
		__typeof__(cuLibraryGetKernel) *get = dlsym(driver, "cuLibraryGetKernel");
		EXPECT(load(&library, ADD_KERNEL, NULL, NULL, 0, NULL, NULL, 0), 0);
		EXPECT(get(&work.kernel, library, "cudasim_add"), 0);
	}
	work.memory = (uintptr_t)pausable(TAKEN, "gated", true);
	for (int which = 0; which < 2; which++) {
		pthread_t thread;
		work.memset = which == 0 ? set : NULL;
		work.launch = which == 1 ? launch : NULL;
		work.done = 0;
		EXPECT(tms_pause_gated("gated", 5), 0);
		start(&thread, do_it, NULL);
		usleep(30000);
		CHECK(!work.done);
		EXPECT(tms_resume("gated"), 0);
		join(thread);
	}
	EXPECT(cudaMemcpy(&word, (void *)work.memory, 4, 2), 0);
	EXPECT(word, 6);
	EXPECT(cudaFree((void *)work.memory), 0);
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(true);
}

static int runtime_memset(uintptr_t memory, unsigned value, size_t count)
{
	unsigned words[16];
	for (size_t i = 0; i < count; i++)
		words[i] = value;
	return cudaMemcpy((void *)memory, words, count * 4, 1);
}

static void allocates(const char *way, allocate_function *allocate, free_function *release, bool pausable)
{
	uintptr_t memory = 0;
	tms_set_current_tag(way);
	EXPECT(allocate(&memory, TAKEN), 0);
	goes_and_comes_back(way, memory, pausable);
	EXPECT(release(memory), 0);
	EXPECT(live(way), 0);
}

static void *of_handle(const char *name)
{
	void *found = dlsym(driver, name);
	CHECK(found);
	return found;
}

static void *by_name(find_function *find, const char *name, int version, uint64_t flags)
{
	void *found = NULL;
	int status;
	EXPECT(find(name, &found, version, flags, &status), 0);
	CHECK(found);
	return found;
}

static void is_of(void *function, const char *library)
{
	Dl_info info;
	CHECK(dladdr(function, &info));
	if (!strstr(info.dli_fname, library)) {
		fprintf(stderr, "%s is in %s, not in %s\n", info.dli_sname, info.dli_fname, library);
		_exit(1);
	}
}

int main(int argc, char **argv)
{
	bool reaching = argc > 1 && strcmp(argv[1], "reaching") == 0;
	const char *theirs = reaching ? "libtms.so" : "libcuda.so";
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver);
	EXPECT(cudaFree(NULL), 0);
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(true);

	allocates("bound", cuMemAlloc_v2, cuMemFree_v2, true);

	allocates("handle", (allocate_function *)of_handle("cuMemAlloc_v2"), (free_function *)of_handle("cuMemFree_v2"),
		  reaching);

	find_function *find = (find_function *)of_handle("cuGetProcAddress_v2");
	if (reaching) {
		void *entries[2] = {NULL};
		passes_the_gate("bound", cuMemsetD32_v2, cuLaunchKernel);
		passes_the_gate("handle", (memset_function *)of_handle("cuMemsetD32_v2"),
				(launch_function *)of_handle("cuLaunchKernel"));
		passes_the_gate("by name", (memset_function *)by_name(find, "cuMemsetD32", 12000, 0),
				(launch_function *)by_name(find, "cuLaunchKernel", 12000, 0));
		passes_the_gate("by name, per thread", (memset_function *)by_name(find, "cuMemsetD32", 12000, 2),
				(launch_function *)by_name(find, "cuLaunchKernel", 12000, 2));
		EXPECT(cudaGetDriverEntryPoint("cuMemsetD32", &entries[0], 0, NULL), 0);
		EXPECT(cudaGetDriverEntryPoint("cuLaunchKernel", &entries[1], 0, NULL), 0);
		passes_the_gate("entry point", (memset_function *)entries[0], (launch_function *)entries[1]);
		passes_the_gate("the runtime's", runtime_memset, cuLaunchKernel);
		is_of(by_name(find, "cuLaunchKernel", 12000, 0), "libtms_reach.so");
		is_of(by_name(find, "cuMemsetD32", 12000, 0), "libtms.so");
		CHECK(by_name(find, "cuMemsetD32", 12000, 2) == dlsym(RTLD_DEFAULT, "cuMemsetD32_v2_ptds"));
		CHECK(by_name(find, "cuLaunchKernelEx", 12000, 2) == dlsym(RTLD_DEFAULT, "cuLaunchKernelEx_ptsz"));
		is_of(by_name(find, "cuStreamBeginCapture", 12000, 0), "libtms.so");
		is_of(of_handle("cuMemAllocAsync"), "libtms.so");
		is_of(of_handle("cuGetProcAddress_v2"), "libtms.so");
		tms_set_interesting_region(true);
		tms_set_enable_cpu_backup(true);
	}
	is_of((void *)find, theirs);
	allocates("by name", (allocate_function *)by_name(find, "cuMemAlloc", 12000, 0),
		  (free_function *)by_name(find, "cuMemFree", 12000, 0), reaching);
	is_of(by_name(find, "cuMemAllocAsync", 12000, 2), theirs); /* of per-thread streams */
	if (reaching) {
		CHECK(by_name(find, "cuMemAllocAsync", 12000, 2) == dlsym(RTLD_DEFAULT, "cuMemAllocAsync_ptsz"));
		CHECK(by_name(find, "cuMemAllocAsync", 12000, 0) == dlsym(RTLD_DEFAULT, "cuMemAllocAsync"));
		CHECK(by_name(find, "cuGetProcAddress", 12000, 0) == (void *)find);
		CHECK(by_name(find, "cuCtxCreate", 3020, 0) == dlsym(RTLD_DEFAULT, "cuCtxCreate_v2"));
	}
	is_of(by_name(find, "cuDeviceGetAttribute", 12000, 0), "libcuda.so"); /* not interposed */

	void *entry = NULL, *entry_of_free = NULL;
	EXPECT(cudaGetDriverEntryPoint("cuMemAlloc", &entry, 0, NULL), 0);
	EXPECT(cudaGetDriverEntryPoint("cuMemFree", &entry_of_free, 0, NULL), 0);
	allocates("entry point", (allocate_function *)entry, (free_function *)entry_of_free, true);

	/* A cudaMalloc that finds its driver by a handle, as the simulator's does, is interposed once. */
	void *runtime = NULL;
	tms_set_current_tag("runtime");
	EXPECT(cudaMalloc(&runtime, TAKEN), 0);
	goes_and_comes_back("runtime", (uintptr_t)runtime, true);
	EXPECT(cudaFree(runtime), 0);
	/* So is the one found by libcudart's own handle, below. */
	void *cudart = dlopen(argv[2], RTLD_NOW);
	CHECK(cudart);
	__typeof__(cudaMalloc) *malloc_of_handle = dlsym(cudart, "cudaMalloc");
	__typeof__(cudaFree) *free_of_handle = dlsym(cudart, "cudaFree");
	tms_set_current_tag("runtime by handle");
	EXPECT(malloc_of_handle(&runtime, TAKEN), 0);
	goes_and_comes_back("runtime by handle", (uintptr_t)runtime, reaching);
	EXPECT(free_of_handle(runtime), 0);
	EXPECT(live("runtime by handle"), 0);

	tms_set_excluded(true);
	tms_set_current_tag("excluded");
	EXPECT(cudaMalloc(&runtime, TAKEN), 0);
	goes_and_comes_back("excluded", (uintptr_t)runtime, false);
	EXPECT(cudaFree(runtime), 0);
	tms_set_excluded(false);

	/* Symbols that the library does not answer for. */
	CHECK(dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc);
	CHECK(dlsym(RTLD_NEXT, "getpid") == (void *)getpid);
	CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == (void *)cuMemAlloc_v2);
	is_of(dlsym(RTLD_NEXT, "cuMemAlloc_v2"), "libtms.so");
	CHECK(!dlsym(driver, "cuThereIsNoSuchThing"));
	CHECK(strstr(dlerror(), "cuThereIsNoSuchThing"));
	CHECK(!dlsym(driver, "cudaMalloc"));
	return 0;
}
