/* CUDA's questions about memory have one answer, whether or not the memory is paused. The argument names the part. It
 * runs with a gate, and with TMS_SHAREABLE=1 where memory is shared by descriptors. */
#include "mapping.h"

int cudaGetLastError(void);
int cuCtxGetDevice(int *);
int cuCtxGetFlags(unsigned *);
int cuDevicePrimaryCtxReset_v2(int);
int cuMemFreeHost(void *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuPointerSetAttribute(const void *, int, uintptr_t);
int cuDeviceGetDefaultMemPool(void **, int);
int cuMemGetAccess(unsigned long long *, const struct access *, uintptr_t);
int cuMemPoolGetAttribute(void *, int, void *);
int cuPointerGetAttribute(void *, int, uintptr_t);
int cuPointerGetAttributes(unsigned, const int *, void **, uintptr_t);
int cudaPointerGetAttributes(void *, const void *);
#pragma weak cuMemGetHandleForAddressRange
int cuMemGetHandleForAddressRange(int *, uintptr_t, size_t, int, unsigned long long);
int cuMulticastCreate(uint64_t *, const struct multicast *);

enum { SIZE = 4 * MIB, ATTRIBUTES = 24, PATIENCE = 600, NOT_SUPPORTED = 801 };
enum { MEMORY_TYPE = 2, BUFFER_ID = 7, MAPPING_SIZE = 18, MAPPING_BASE = 19, MEMORY_BLOCK_ID = 20 };

struct answers {
	uint64_t alone[ATTRIBUTES], together[ATTRIBUTES];
	int codes[ATTRIBUTES], runtime, range, access;
	struct {
		int type, device;
		void *pointer, *host;
		long more[8];
	} attributes;
	uintptr_t base;
	size_t size;
	unsigned long long flags;
};

/* CUDA gives mappings new numbers when memory comes back, and the granules around an allocation may be others then. */
static bool may_change(int attribute)
{
	return attribute == BUFFER_ID || attribute == MEMORY_BLOCK_ID || attribute == MAPPING_SIZE ||
	       attribute == MAPPING_BASE;
}

static struct answers ask(uintptr_t address)
{
	struct answers a = {.runtime = -1};
	int some[ATTRIBUTES], count = 0;
	void *places[ATTRIBUTES];
	for (int i = 1; i < ATTRIBUTES; i++) {
		a.codes[i] = cuPointerGetAttribute(&a.alone[i], i, address);
		if (i == 5 || i > MEMORY_BLOCK_ID)
			continue; /* cuPointerGetAttributes refuses attributes that it does not know */
		some[count] = i;
		places[count++] = &a.together[i];
		if (may_change(i))
			CHECK((a.codes[i] == 0 && a.alone[i]) || a.codes[MEMORY_TYPE] != 0);
	}
	EXPECT(cuPointerGetAttributes((unsigned)count, some, places, address), 0);
	for (int i = 1; i < ATTRIBUTES; i++)
		if (may_change(i)) {
			CHECK(a.alone[i] == a.together[i] || a.codes[i] != 0);
			a.alone[i] = a.together[i] = 0;
		}
	a.runtime = cudaPointerGetAttributes(&a.attributes, (void *)address);
	a.range = cuMemGetAddressRange_v2(&a.base, &a.size, address);
	a.access = cuMemGetAccess(&a.flags, &readwrite, address);
	return a;
}

static void same(const struct answers *one, const struct answers *other)
{
	for (int i = 1; i < ATTRIBUTES; i++)
		if (one->codes[i] != other->codes[i] || one->alone[i] != other->alone[i] ||
		    one->together[i] != other->together[i]) {
			fprintf(stderr, "attribute %d: %d %#llx %#llx, paused %d %#llx %#llx\n", i, one->codes[i],
				(unsigned long long)one->alone[i], (unsigned long long)one->together[i], other->codes[i],
				(unsigned long long)other->alone[i], (unsigned long long)other->together[i]);
			_exit(1);
		}
	CHECK(memcmp(one, other, sizeof *one) == 0);
}

/* The same before, during and after a pause, by the program itself and by others. */
static void asked_around_pauses(uintptr_t address)
{
	struct answers before = ask(address), then;
	EXPECT(before.codes[MEMORY_TYPE], 0);
	EXPECT(before.attributes.type, 2);
	EXPECT(before.flags, 3);
	for (int gated = 0; gated < 2; gated++) {
		EXPECT(gated ? tms_pause_gated(NULL, PATIENCE) : tms_pause(NULL), 0);
		then = ask(address);
		EXPECT(tms_resume(NULL), 0);
		same(&before, &then);
		then = ask(address);
		same(&before, &then);
	}
}

static uint64_t made(const struct prop *prop)
{
	uint64_t handle = 0;
	EXPECT(cu.cuMemCreate(&handle, SIZE, prop, 0), 0);
	return handle;
}

static uintptr_t mapped(uint64_t handle)
{
	uintptr_t address = 0;
	EXPECT(cu.cuMemAddressReserve(&address, SIZE, 0, 0, 0), 0);
	EXPECT(cu.cuMemMap(address, SIZE, 0, handle, 0), 0);
	EXPECT(cu.cuMemSetAccess(address, SIZE, &readwrite, 1), 0);
	return address;
}

static void attributes(void)
{
	void *large = pausable(SIZE, "t", true), *small = pausable(1000, "t", true);
	asked_around_pauses((uintptr_t)large);
	asked_around_pauses((uintptr_t)large + SIZE - 1);
	asked_around_pauses((uintptr_t)small + 5);
	fetch(by_version);
	enter("t", true);
	uintptr_t own = mapped(made(&exportable));
	leave();
	asked_around_pauses(own + 100);
	/* The library does not answer for an address without memory. */
	struct answers nothing = ask(own + SIZE);
	EXPECT(nothing.codes[MEMORY_TYPE], 1);
	int host = 0;
	nothing = ask((uintptr_t)&host);
	EXPECT(nothing.codes[MEMORY_TYPE], 1);
	EXPECT(cudaFree(large), 0);
	EXPECT(tms_pause(NULL), 0);
	nothing = ask((uintptr_t)large);
	EXPECT(nothing.codes[MEMORY_TYPE], 1);
}

/* To UCX, NIXL, NCCL and GDRCopy the memory is as cudaMalloc's, and it has a handle where cudaIpcGetMemHandle makes
 * one. */
static void communication(void)
{
	enum { CONTEXT = 1, SYNC_MEMOPS = 6, IPC_CAPABLE = 10, CTX_SYNC_MEMOPS = 0x80 };
	bool shared = getenv("TMS_SHAREABLE") && !strcmp(getenv("TMS_SHAREABLE"), "ipc");
	void *context = NULL, *current = NULL;
	unsigned is_capable = ~0u, on = 1, off = 0, flags = 0;
	struct handle handle;
	uintptr_t memory = (uintptr_t)pausable(SIZE, "t", true);
	EXPECT(cuCtxGetCurrent(&current), 0);
	EXPECT(cuPointerGetAttribute(&context, CONTEXT, memory), 0);
	CHECK(context && context == current);
	EXPECT(cuPointerGetAttribute(&is_capable, IPC_CAPABLE, memory), 0);
	EXPECT(cudaIpcGetMemHandle(&handle, (void *)memory), is_capable ? 0 : NOT_SUPPORTED);
	EXPECT(is_capable, shared);
	EXPECT(cuPointerSetAttribute(&off, SYNC_MEMOPS, memory), 0);
	EXPECT(cuCtxGetFlags(&flags), 0);
	CHECK(!(flags & CTX_SYNC_MEMOPS));
	EXPECT(cuPointerSetAttribute(&on, SYNC_MEMOPS, memory), 0);
	EXPECT(cuCtxGetFlags(&flags), 0);
	CHECK(flags & CTX_SYNC_MEMOPS);
	EXPECT(tms_pause(NULL), 0);
	FAILS(cuPointerSetAttribute(&on, SYNC_MEMOPS, memory), NOT_SUPPORTED, "paused");
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cuPointerSetAttribute(&on, SYNC_MEMOPS, (uintptr_t)&on), 1);
}

/* A pool's attributes and a handle's properties. */
static void handles(void)
{
	void *pool = NULL;
	uint64_t sizes[2] = {1, 1};
	struct prop before = {0}, then = {0};
	fetch(by_version);
	enter("t", true);
	uint64_t handle = made(&exportable), other = 0;
	uintptr_t address = mapped(handle);
	leave();
	EXPECT(cu.cuMemGetAllocationPropertiesFromHandle(&before, handle), 0);
	for (int gated = 0; gated < 2; gated++) {
		EXPECT(gated ? tms_pause_gated(NULL, PATIENCE) : tms_pause(NULL), 0);
		EXPECT(cu.cuMemGetAllocationPropertiesFromHandle(&then, handle), 0);
		CHECK(memcmp(&before, &then, sizeof then) == 0);
		EXPECT(cu.cuMemRetainAllocationHandle(&other, (void *)address), 0);
		EXPECT(other, handle);
		EXPECT(cu.cuMemRelease(other), 0);
		EXPECT(cuDeviceGetDefaultMemPool(&pool, 0), 0);
		EXPECT(cuMemPoolGetAttribute(pool, 4 /* release threshold */, &sizes[gated]), 0);
		EXPECT(tms_resume(NULL), 0);
	}
	EXPECT(sizes[0], sizes[1]);
}

/* A thread that makes a call at the gate. */
struct caller {
	pthread_t thread;
	int (*call)(struct caller *);
	uint64_t handle, object;
	uintptr_t address;
	int descriptor, code;
	_Atomic pid_t number;
	_Atomic bool done;
};

static void *be_caller(void *argument)
{
	struct caller *caller = argument;
	caller->number = (pid_t)syscall(SYS_gettid);
	caller->code = caller->call(caller);
	caller->done = true;
	return NULL;
}

static int export(struct caller *caller)
{
	return cu.cuMemExportToShareableHandle(&caller->descriptor, caller->handle, POSIX_FD, 0);
}

static int export_range(struct caller *caller)
{
	return cuMemGetHandleForAddressRange(&caller->descriptor, caller->address, SIZE, POSIX_FD, 0);
}

static int bind(struct caller *caller)
{
	return cuMulticastBindMem(caller->object, 0, caller->handle, 0, SIZE, 0);
}

/* A call that needs the memory itself is refused with a text where the program has paused it. Elsewhere it waits. */
static void needs_memory(int (*call)(struct caller *))
{
	struct multicast group = {1, SIZE, POSIX_FD, 0};
	struct caller caller = {.call = call};
	enter("t", true);
	caller.handle = made(&exportable);
	caller.address = mapped(caller.handle);
	leave();
	if (call == bind) {
		EXPECT(cuMulticastCreate(&caller.object, &group), 0);
		EXPECT(cuMulticastAddDevice(caller.object, 0), 0);
	}
	EXPECT(tms_pause(NULL), 0);
	FAILS(call(&caller), NOT_SUPPORTED, "paused");
	EXPECT(tms_resume(NULL), 0);

	EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
	start(&caller.thread, be_caller, &caller);
	AWAIT((caller.number && in_call(caller.number, SYS_futex)) || caller.done);
	CHECK(!caller.done);
	EXPECT(tms_resume(NULL), 0);
	join(caller.thread);
	EXPECT(caller.code, 0);
}

static void lent(void)
{
	fetch(by_version);
	needs_memory(export);
}

static void lent_by_range(void)
{
	fetch(by_version);
	needs_memory(export_range);
}

static void bound(void)
{
	fetch(by_version);
	needs_memory(bind);
}

/* cudaIpcGetMemHandle names the memory, so it can be made at any time. */
static void ipc(void)
{
	struct handle before, then;
	void *memory = pausable(SIZE, "t", true);
	EXPECT(cudaIpcGetMemHandle(&before, memory), 0);
	for (int gated = 0; gated < 2; gated++) {
		EXPECT(gated ? tms_pause_gated(NULL, PATIENCE) : tms_pause(NULL), 0);
		EXPECT(cudaIpcGetMemHandle(&then, memory), 0);
		EXPECT(tms_resume(NULL), 0);
		CHECK(memcmp(&before, &then, sizeof then) == 0);
	}
}

static char from[4096], to[4096];

static int copy_on_host(struct caller *caller)
{
	enum { HOST_TO_HOST = 0 };
	(void)caller;
	return cudaMemcpy(to, from, sizeof to, HOST_TO_HOST);
}

/* Calls about host memory and free memory need no paused memory. Copies between host buffers wait as all copies do. */
static void beside(void)
{
	static char registered[65536] __attribute__((aligned(4096)));
	struct caller caller = {.call = copy_on_host};
	(void)pausable(SIZE, "t", true);
	for (int gated = 0; gated < 2; gated++) {
		void *host = NULL;
		size_t before = free_bytes();
		memset(from, 1 + gated, sizeof from);
		EXPECT(gated ? tms_pause_gated(NULL, PATIENCE) : tms_pause(NULL), 0);
		EXPECT(free_bytes() - before, SIZE);
		EXPECT(cuMemHostRegister_v2(registered, sizeof registered, 0), 0);
		EXPECT(cuMemHostUnregister(registered), 0);
		EXPECT(cuMemHostAlloc(&host, 4096, 0), 0);
		EXPECT(cuMemFreeHost(host), 0);
		if (gated) {
			start(&caller.thread, be_caller, &caller);
			AWAIT((caller.number && in_call(caller.number, SYS_futex)) || caller.done);
			CHECK(!caller.done && memcmp(from, to, sizeof to) != 0);
		} else {
			EXPECT(copy_on_host(NULL), 0);
		}
		EXPECT(tms_resume(NULL), 0);
		if (gated) {
			join(caller.thread);
			EXPECT(caller.code, 0);
		}
		CHECK(memcmp(from, to, sizeof to) == 0);
	}
}

static void nothing(void *unused)
{
	(void)unused;
}

/* The driver refuses paused memory with a bare code, here in a call whose arguments are not looked at. The last error
 * of the thread says why, as soon as libtms.so hears of it, and so does one line. */
static void refused(void)
{
	for (int paused = 0; paused < 2; paused++) {
		pausable(SIZE, "t", true);
		if (paused)
			EXPECT(tms_pause(NULL), 0);
		fprintf(stderr, paused ? "paused\n" : "");
		for (int i = 0; i < 2; i++) {
			sim_fail("cuLaunchHostFunc", 1, 1);
			EXPECT(cudaLaunchHostFunc(NULL, nothing, NULL), 1);
			EXPECT(cudaGetLastError(), 1);
			EXPECT(cudaGetLastError(), 0);
			EXPECT(strstr(tms_last_error(), "was refused (1) while tag \"t\" is paused: resume memory before "
							"calls that name its addresses") != NULL,
			       paused);
		}
	}
	EXPECT(tms_resume(NULL), 0);
}

static int fill_again(struct caller *caller)
{
	return cuMemsetD32_v2(caller->address, 1, 1);
}

/* A reset ends paused memory too, and with it the pause: threads that waited for the memory find that it is gone. */
static void reset(void)
{
	for (int way = 0; way < 4; way++) {
		bool gated = way & 1;
		struct caller caller = {.call = fill_again, .address = (uintptr_t)pausable(SIZE, "t", true)};
		EXPECT(gated ? tms_pause_gated(NULL, PATIENCE) : tms_pause(NULL), 0);
		if (gated) {
			start(&caller.thread, be_caller, &caller);
			AWAIT((caller.number && in_call(caller.number, SYS_futex)) || caller.done);
			CHECK(!caller.done);
		}
		EXPECT(way & 2 ? cuDevicePrimaryCtxReset_v2(0) : cudaDeviceReset(), 0);
		if (gated) {
			join(caller.thread);
			CHECK(caller.code != 0);
		}
		EXPECT(tms_resume(NULL), 0);
		EXPECT(cudaFree(NULL), 0);
		EXPECT(sim_stat("handles"), 0);
		void *memory = kept_memory(SIZE, "t", 7);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(memory, SIZE, 7));
		EXPECT(cudaFree(memory), 0);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	EXPECT(cudaFree(NULL), 0);
	CHECK(RUN_PART(argv[1], {"attributes", attributes}, {"communication", communication}, {"handles", handles},
		       {"lent", lent}, {"lent by range", lent_by_range}, {"bound", bound}, {"ipc", ipc},
		       {"beside", beside}, {"reset", reset}, {"refused", refused}));
	return 0;
}
