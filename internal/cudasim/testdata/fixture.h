// What the C fixtures share: the driver's functions, and a check that prints what went wrong.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../cudasim.h"
#include "../driver/abi/api.h"

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                      \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)
// Checks that the call returns this code.
#define GIVES(code, call)                                                                                    \
	do {                                                                                                 \
		int got_ = (int)(call);                                                                      \
		if (got_ != (code)) {                                                                        \
			fprintf(stderr, "%s:%d: %s gives %d, not %d\n", __FILE__, __LINE__, #call, got_,     \
				code);                                                                       \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)
#define OK(call) GIVES(0, call)

#define MIB ((size_t)1 << 20)
#define GRANULE (2 * MIB)

static inline CUcontext start(int device)
{
	CUcontext context;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	return context;
}

static inline CUmemAllocationProp device_memory(int device)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static inline CUmemGenericAllocationHandle create(size_t size)
{
	CUmemAllocationProp prop = device_memory(0);
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, size, &prop, 0));
	return handle;
}

static inline CUdeviceptr reserve(size_t size)
{
	CUdeviceptr address;
	OK(cuMemAddressReserve(&address, size, 0, 0, 0));
	return address;
}

static inline void allow(CUdeviceptr address, size_t size)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemSetAccess(address, size, &access, 1));
}

// Puts fresh memory at an address: creates, maps, and grants access; the handle is released, and the mapping holds the
// memory.
static inline void back(CUdeviceptr address, size_t size)
{
	CUmemGenericAllocationHandle handle = create(size);
	OK(cuMemMap(address, size, 0, handle, 0));
	allow(address, size);
	OK(cuMemRelease(handle));
}

static inline CUdeviceptr mapped(size_t size)
{
	CUdeviceptr address = reserve(size);
	back(address, size);
	return address;
}

static inline char *bytes(CUdeviceptr address)
{
	return (char *)address;
}

// Returns whether touching an address faults.
#include <setjmp.h>
#include <signal.h>
static sigjmp_buf touched;
static void on_fault(int signal)
{
	siglongjmp(touched, signal);
}
static inline int faults(CUdeviceptr address)
{
	struct sigaction action = {.sa_handler = on_fault}, before;
	sigaction(SIGSEGV, &action, &before);
	int signal = sigsetjmp(touched, 1);
	if (!signal)
		*(volatile char *)address = *(volatile char *)address;
	sigaction(SIGSEGV, &before, NULL);
	return signal == SIGSEGV;
}

// A fixture is a list of cases: it runs one by name, or lists all names.
struct test_case {
	const char *name;
	void (*run)(void);
};
static inline int run_cases(int argc, char **argv, const struct test_case *cases, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (argc < 2) {
			puts(cases[i].name);
		} else if (!strcmp(cases[i].name, argv[1])) {
			cases[i].run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
#define MAIN(...)                                                                                            \
	int main(int argc, char **argv)                                                                      \
	{                                                                                                    \
		const struct test_case cases[] = {__VA_ARGS__};                                              \
		return run_cases(argc, argv, cases, sizeof cases / sizeof *cases);                           \
	}
#define CASE(function) {#function, function}
