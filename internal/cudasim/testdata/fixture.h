// What the C fixtures share: the driver's functions, and a check that prints what went wrong.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
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
// Checks that a function stores this value where its first argument says.
#define STORES(value, function, ...)                                                                         \
	do {                                                                                                 \
		__typeof__(value) stored_;                                                                   \
		memset(&stored_, 0x5a, sizeof stored_);                                                      \
		OK(function(&stored_, ##__VA_ARGS__));                                                       \
		if (stored_ != (value)) {                                                                    \
			fprintf(stderr, "%s:%d: %s does not store %s\n", __FILE__, __LINE__, #function,     \
				#value);                                                                     \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)
// Waits until a call no longer says that it is not ready; then it must succeed.
#define COMES_TRUE(call)                                                                                     \
	do {                                                                                                 \
		int now_;                                                                                    \
		while ((now_ = (int)(call)) == CUDA_ERROR_NOT_READY)                                         \
			usleep(100);                                                                         \
		if (now_) {                                                                                  \
			fprintf(stderr, "%s:%d: %s gives %d at last, not 0\n", __FILE__, __LINE__, #call,    \
				now_);                                                                       \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

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

static inline CUmemAccessDesc access_of(int device, unsigned flags)
{
	return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

static inline CUresult set_access(CUdeviceptr address, size_t size, int device, unsigned flags)
{
	CUmemAccessDesc access = access_of(device, flags);
	return cuMemSetAccess(address, size, &access, 1);
}

static inline void allow(CUdeviceptr address, size_t size)
{
	OK(set_access(address, size, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static inline unsigned long long access_at(CUdeviceptr address, int device)
{
	unsigned long long flags = 9;
	CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
	OK(cuMemGetAccess(&flags, &location, address));
	return flags;
}

// Maps memory, and grants access.
static inline void place(CUdeviceptr address, size_t size, CUmemGenericAllocationHandle handle)
{
	OK(cuMemMap(address, size, 0, handle, 0));
	allow(address, size);
}

// Puts fresh memory at an address. The handle is released, and the mapping holds the memory.
static inline void back(CUdeviceptr address, size_t size)
{
	CUmemGenericAllocationHandle handle = create(size);
	place(address, size, handle);
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

static inline CUdeviceptr allocate(size_t size)
{
	CUdeviceptr address;
	OK(cuMemAlloc_v2(&address, size));
	return address;
}

static inline void *pinned(size_t size)
{
	void *memory;
	OK(cuMemHostAlloc(&memory, size, 0));
	return memory;
}

static inline CUstream stream_new(unsigned flags)
{
	CUstream stream;
	OK(cuStreamCreate(&stream, flags));
	return stream;
}

// Makes a stream that the default stream does not wait for.
static inline CUstream apart(void)
{
	return stream_new(CU_STREAM_NON_BLOCKING);
}

static inline CUgraphExec instantiated(CUgraph graph)
{
	CUgraphExec exec;
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static inline void on_a_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, run, argument));
	pthread_join(thread, NULL);
}

// Returns whether touching an address faults.
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
