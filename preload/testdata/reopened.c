/* CUDA's libraries are loaded, unloaded, and loaded elsewhere: by plugins that are linked with them, in turn, or by the
 * handle of a program that looks up the driver's functions. Called as: reopened plugins FILE..., or reopened driver */
#include "host.h"

int cuDevicePrimaryCtxRelease_v2(int);

/* Fills holes, so that nothing is loaded again where it was. */
static void fill_holes(void)
{
	for (int i = 0; i < 200; i++)
		CHECK(mmap(NULL, 16 << 10, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
}

static void use_plugin(const char *file, int round)
{
	void *plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	CHECK(plugin);
	EXPECT(((__typeof__(cudaSetDevice) *)dlsym(plugin, "use"))(round), 0);
	CHECK(dlclose(plugin) == 0);
}

#define FUNCTION(name)                                                                             \
	__typeof__(name) *name = dlsym(driver, #name);                                             \
	CHECK(name && !dlerror())

static void use_driver(unsigned round)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context = NULL, *found = NULL;
	unsigned word = 0;
	uintptr_t memory = 0;
	CHECK(driver);
	FUNCTION(cuInit);
	FUNCTION(cuDevicePrimaryCtxRetain);
	FUNCTION(cuDevicePrimaryCtxRelease_v2);
	FUNCTION(cuCtxSetCurrent);
	FUNCTION(cuMemAlloc_v2);
	FUNCTION(cuMemFree_v2);
	FUNCTION(cuMemsetD32_v2);
	FUNCTION(cuMemcpyDtoH_v2);
	FUNCTION(cuGetProcAddress_v2);
	CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
	CHECK(cuGetProcAddress_v2("cuMemcpyHtoD", &found, 12000, 0, NULL) == 0);
	CHECK(cuMemAlloc_v2(&memory, 4096) == 0 && cuMemsetD32_v2(memory, ~round, 1024) == 0);
	CHECK(((int (*)(uintptr_t, const void *, size_t))found)(memory, &round, sizeof round) == 0);
	CHECK(cuMemcpyDtoH_v2(&word, memory, sizeof word) == 0 && word == round);
	CHECK(cuMemFree_v2(memory) == 0 && cuCtxSetCurrent(NULL) == 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
	CHECK(dlclose(driver) == 0);
}

int main(int argc, char **argv)
{
	for (int i = 0; i < 8; i++) {
		if (argc > 2)
			use_plugin(argv[2 + i % (argc - 2)], i);
		else
			use_driver((unsigned)i);
		fill_holes();
	}
	return 0;
}
