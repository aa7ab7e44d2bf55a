/* Allocates by one function, and prints what became of it: pausable, forwarded, or refused (code). Called as:
 * compatibility FUNCTION in|out */
#include "host.h"

enum { SIZE = 3 << 20 };
typedef struct {
	void *pointer;
	size_t pitch, width, height;
} pitched;
typedef struct {
	size_t width, height, depth;
} extent;
typedef struct {
	int type, device;
	void *device_pointer, *host_pointer;
	long reserved[8];
} attributes;

static void *stream;

/* Returns the function as a program that links with CUDA finds it. */
static void *function(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	if (!found && strncmp(name, "cu", 2) == 0 && strncmp(name, "cuda", 4) != 0)
		found = simulator(name);
	CHECK(found);
	return found;
}

/* Calls a function whose name is known here only as a kind, by the type of one that is declared. */
#define CALL(like, name) ((__typeof__(like) *)function(name))

static bool starts(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

static int allocate(const char *name, void **pointer)
{
	void *pool = NULL;
	size_t row = 0;
	if (starts(name, "cudaMallocPitch")) {
		int code = CALL(cudaMallocPitch, name)(pointer, &row, 1000, 4000);
		CHECK(code || row >= 1000);
		return code;
	}
	if (starts(name, "cuMemAllocPitch")) {
		int code = ((int (*)(void **, size_t *, size_t, size_t, unsigned))function(name))(pointer, &row, 1000, 4000, 4);
		CHECK(code || row >= 1000);
		return code;
	}
	if (strcmp(name, "cudaMalloc3D") == 0) {
		pitched p = {0};
		int code = ((int (*)(pitched *, extent))function(name))(&p, (extent){1000, 40, 100});
		CHECK(code || (p.pitch >= 1000 && p.width == 1000 && p.height == 40));
		*pointer = p.pointer;
		return code;
	}
	if (strstr(name, "FromPool")) {
		EXPECT(((int (*)(void **, int))function("cudaDeviceGetDefaultMemPool"))(&pool, 0), 0);
		return ((int (*)(void **, size_t, void *, void *))function(name))(pointer, SIZE, pool, stream);
	}
	if (strstr(name, "Async"))
		return CALL(cudaMallocAsync, name)(pointer, SIZE, stream);
	return CALL(cudaMalloc, name)(pointer, SIZE);
}

static int release(const char *name, void *pointer)
{
	if (!strstr(name, "Async"))
		return CALL(cudaFree, name)(pointer);
	int code = CALL(cudaFreeAsync, name)(pointer, stream);
	EXPECT(cudaStreamSynchronize(stream), 0);
	return code;
}

static bool is_pausable(void *pointer)
{
	size_t before = free_bytes();
	uint64_t handles = sim_stat("handles");
	EXPECT(tms_pause(NULL), 0);
	bool gone = free_bytes() >= before + SIZE;
	EXPECT(gone, handles > 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cudaMemset(pointer, 1, SIZE / 2), 0);
	return gone;
}

static void captured(const char *name, bool in)
{
	/* While its stream is captured an allocation belongs to the graph, and a free of our memory is refused. */
	void *graph = NULL, *pointer = NULL, *ours = pausable(SIZE, "ours", false);
	uint64_t handles = sim_stat("handles");
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	tms_set_interesting_region(in);
	if (strstr(name, "Free")) {
		FAILS(CALL(cudaFreeAsync, name)(ours, stream), 801, "capture");
	} else {
		allocate(name, &pointer); /* whatever CUDA returns */
	}
	EXPECT(sim_stat("handles"), handles);
	tms_set_interesting_region(false);
	cudaStreamEndCapture(stream, &graph);
	EXPECT(cudaFree(ours), 0);
}

/* A function for memory that a program maps itself: in a region, and where possible on paused memory. */
static void mapping(const char *name, bool in)
{
	const size_t size = 4 * MIB;
	uintptr_t base = 0;
	uint64_t handle = 0, again = 0;
	size_t before = free_bytes();
	EXPECT(CALL(cuMemAddressReserve, "cuMemAddressReserve")(&base, 4 * size, 0, 0, 0), 0);
	tms_set_interesting_region(in);
	tms_set_enable_cpu_backup(in);
	EXPECT(cuMemCreate(&handle, size, &exportable, 0), 0);
	tms_set_interesting_region(false);
	EXPECT(cuMemMap(base, size, 0, handle, 0), 0);
	EXPECT(cuMemSetAccess(base, size, &readwrite, 1), 0);
	fill((void *)base, size, 1);
	if (strcmp(name, "cuMemCreate") == 0) {
		size_t active = free_bytes();
		EXPECT(tms_pause(NULL), 0);
		puts(free_bytes() == active + size ? "pausable" : "forwarded");
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled((void *)base, size, 1));
	} else if (strcmp(name, "cuMemExportToShareableHandle") == 0) {
		int fd = -1;
		EXPECT(CALL(cuMemExportToShareableHandle, name)(&fd, handle, 1, 0), 0);
		CHECK(fd >= 0);
		close(fd);
		EXPECT(tms_pause(NULL), 0);
		CHECK(filled((void *)base, size, 1));
		puts(in ? "works" : "forwarded");
	} else if (starts(name, "cuMulticastBind")) {
		const struct multicast group = {1, size, 0, 0};
		uint64_t object = 0;
		EXPECT(cuMulticastCreate(&object, &group), 0);
		if (starts(name, "cuMulticastBindAddr")) {
			void *ours = pausable(size, "it", true);
			for (int mapped = 0; mapped < 2; mapped++) {
				uintptr_t at = mapped ? base : (uintptr_t)ours;
				EXPECT(strstr(name, "_v2")
					       ? ((int (*)(uint64_t, int, size_t, uintptr_t, size_t, unsigned long long))function(
							 name))(object, 0, 0, at, size, 0)
					       : ((int (*)(uint64_t, size_t, uintptr_t, size_t, unsigned long long))function(name))(
							 object, 0, at, size, 0),
				       mapped ? 0 : 801);
			}
			EXPECT(cudaFree(ours), 0);
		} else if (strstr(name, "_v2"))
			EXPECT(((int (*)(uint64_t, int, size_t, uint64_t, size_t, size_t, unsigned long long))function(name))(
				       object, 0, 0, handle, 0, size, 0), 0);
		else
			EXPECT(((int (*)(uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long))function(name))(
				       object, 0, handle, 0, size, 0), 0);
		EXPECT(tms_pause(NULL), 0);
		CHECK(filled((void *)base, size, 1));
		EXPECT(cuMemRelease(object), 0);
		puts(in ? "works" : "forwarded");
	} else if (strcmp(name, "cuMemGetAllocationPropertiesFromHandle") == 0) {
		struct prop got = {0};
		EXPECT(((int (*)(struct prop *, uint64_t))function(name))(&got, handle), 0);
		EXPECT(got.handle_types, 1);
		puts(in ? "works" : "forwarded");
	} else {
		EXPECT(tms_pause(NULL), 0);
		EXPECT(sim_stat("handles"), !in);
		EXPECT(cuMemAddressFree(base, 4 * size), 1);
		if (strcmp(name, "cuMemRetainAllocationHandle") == 0) {
			EXPECT(CALL(cuMemRetainAllocationHandle, name)(&again, (void *)base), 0);
			CHECK(again == handle);
			EXPECT(cuMemRelease(again), 0);
		} else if (strcmp(name, "cuMemMap") == 0) {
			EXPECT(cuMemUnmap(base, size), 0);
			EXPECT(cuMemMap(base + 2 * size, size, 0, handle, 0), 0);
			EXPECT(cuMemSetAccess(base + 2 * size, size, &readwrite, 1), 0);
		}
		bool gone = strcmp(name, "cuMemUnmap") == 0 || strcmp(name, "cuMemRelease") == 0;
		if (gone) {
			EXPECT(cuMemUnmap(base, size), 0);
			EXPECT(cuMemRelease(handle), 0);
		}
		EXPECT(tms_resume(NULL), 0);
		if (strcmp(name, "cuMemMap") == 0) {
			CHECK(filled((void *)(base + 2 * size), size, 1));
			EXPECT(cuMemUnmap(base + 2 * size, size), 0);
			EXPECT(cuMemMap(base, size, 0, handle, 0), 0);
			EXPECT(cuMemSetAccess(base, size, &readwrite, 1), 0);
		}
		if (!gone)
			CHECK(filled((void *)base, size, 1));
		puts(!in				      ? "forwarded"
		     : strcmp(name, "cuMemAddressFree") == 0 ? "refused (1)"
							      : "works");
		if (gone) {
			EXPECT(cuMemAddressFree(base, 4 * size), 0);
			EXPECT(free_bytes(), before);
			return;
		}
	}
	EXPECT(cuMemUnmap(base, size), 0);
	EXPECT(cuMemRelease(handle), 0);
	EXPECT(cuMemAddressFree(base, 4 * size), 0);
	EXPECT(free_bytes(), before);
}

static bool maps(const char *name)
{
	static const char *const names[] = {
		"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree",
		"cuMemExportToShareableHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemRetainAllocationHandle",
	};
	bool found = starts(name, "cuMulticastBind");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		found = found || strcmp(names[i], name) == 0;
	return found;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	const char *name = argv[1];
	bool in = strcmp(argv[2], "in") == 0;
	void *pointer = NULL;
	EXPECT(cudaFree(NULL), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	if (maps(name)) {
		mapping(name, in);
		return 0;
	}
	if (starts(name, "cudaMalloc") || starts(name, "cuMemAlloc")) {
		size_t before = free_bytes();
		tms_set_interesting_region(in);
		int code = allocate(name, &pointer);
		tms_set_interesting_region(false);
		if (code != 0) {
			printf("refused (%d)\n", code);
			return 0;
		}
		CHECK(pointer && before - free_bytes() >= SIZE);
		puts(is_pausable(pointer) ? "pausable" : "forwarded");
		EXPECT(release(strstr(name, "Async") ? "cudaFreeAsync" : "cudaFree", pointer), 0);
		becomes("handles", 0);
		if (strstr(name, "Async"))
			captured(name, in);
		return 0;
	}
	if (in)
		pointer = pausable(SIZE, "it", true);
	else
		EXPECT(cudaMalloc(&pointer, SIZE), 0);
	EXPECT(sim_stat("handles"), in);
	if (starts(name, "cudaFree") || starts(name, "cuMemFree")) {
		if (in && !strstr(name, "Async")) {
			EXPECT(release(name, (char *)pointer + 512), 1);
			EXPECT(sim_stat("handles"), 1);
		}
		if (in && strstr(name, "Async")) {
			captured(name, in);
			/* Work that the stream still holds is done first, on the memory that it was meant for. */
			EXPECT(cudaMemsetAsync(pointer, 7, SIZE, stream), 0);
		}
		size_t before = free_bytes();
		EXPECT(release(name, pointer), 0);
		becomes("handles", 0);
		CHECK(!in || free_bytes() >= before + SIZE);
		puts(in ? "frees" : "forwarded");
	} else if (strstr(name, "Reset")) {
		if (starts(name, "cuda"))
			EXPECT(CALL(cudaDeviceReset, name)(), 0);
		else
			EXPECT(CALL(cudaSetDevice, name)(0), 0);
		EXPECT(sim_stat("handles"), 0);
		EXPECT(sim_stat("registered_bytes"), 0);
		EXPECT(cudaFree(NULL), 0);
		if (in)
			EXPECT(cudaFree(pointer), 1);
		/* And the device can be used again, also in regions. */
		pointer = kept_memory(SIZE, "again", 3);
		PAUSE_AND_RESUME(NULL);
		CHECK(filled(pointer, SIZE, 3));
		EXPECT(cudaFree(pointer), 0);
		puts(in ? "drops" : "forwarded");
	} else if (starts(name, "cuMemGetAddressRange") || starts(name, "cuPointerGetAttribute")) {
		enum { RANGE_START = 11, RANGE_SIZE = 12, SMALL = 5000 };
		for (int paused = 0; paused <= in; paused++) {
			void *base = NULL;
			size_t size = 0;
			uintptr_t inside = (uintptr_t)pointer + 100;
			if (paused)
				EXPECT(tms_pause(NULL), 0);
			if (starts(name, "cuMem")) {
				EXPECT(CALL(cuMemGetAddressRange_v2, name)((uintptr_t *)&base, &size, inside), 0);
			} else if (strcmp(name, "cuPointerGetAttribute") == 0) {
				EXPECT(cuPointerGetAttribute(&base, RANGE_START, inside), 0);
				EXPECT(cuPointerGetAttribute(&size, RANGE_SIZE, inside), 0);
			} else {
				EXPECT(((int (*)(unsigned, const int *, void **, uintptr_t))function(name))(
					       2, (int[]){RANGE_START, RANGE_SIZE}, (void *[]){&base, &size}, inside),
				       0);
			}
			CHECK(base == pointer && size == SIZE);
		}
		if (in) { /* each of several in one mapping is told apart */
			EXPECT(tms_resume(NULL), 0);
			(void)pausable(SMALL, "small", false);
			char *second = pausable(SMALL, "small", false);
			uintptr_t base = 0;
			EXPECT(cuPointerGetAttribute(&base, RANGE_START, (uintptr_t)second + 100), 0);
			CHECK(base == (uintptr_t)second);
		}
		puts(in ? "the allocation" : "forwarded");
	} else if (starts(name, "cuPointerSetAttribute")) {
		enum { SYNC_MEMOPS = 6 };
		int (*f)(const void *, int, uintptr_t) = (int (*)(const void *, int, uintptr_t))function(name);
		EXPECT(f(&(unsigned){1}, SYNC_MEMOPS, (uintptr_t)pointer + 100), 0);
		puts(in ? "works" : "forwarded");
	} else if (starts(name, "cuMemGetAccess")) {
		unsigned long long flags = 0;
		int (*f)(unsigned long long *, const struct access *, uintptr_t) =
			(int (*)(unsigned long long *, const struct access *, uintptr_t))function(name);
		for (int paused = 0; paused <= in; paused++) {
			if (paused)
				EXPECT(tms_pause(NULL), 0);
			int code = f(&flags, &readwrite, (uintptr_t)pointer + 100);
			CHECK(!in || (code == 0 && flags == 3)); /* plain memory has no access of this kind */
		}
		puts(in ? "the allocation" : "forwarded");
	} else if (strstr(name, "PointerGetAttributes")) {
		int (*f)(attributes *, const void *) = (int (*)(attributes *, const void *))function(name);
		for (int paused = 0; paused <= in; paused++) {
			attributes a = {.type = -1};
			if (paused)
				EXPECT(tms_pause(NULL), 0);
			EXPECT(f(&a, (char *)pointer + 100), 0);
			EXPECT(a.type, 2);
			EXPECT(a.device, 0);
			CHECK(a.device_pointer == (char *)pointer + 100 && !a.host_pointer);
		}
		puts(in ? "device memory" : "forwarded");
	} else if (strstr(name, "PoolDestroy")) { /* a pool is not paused with the rest */
		struct {
			struct prop prop;
			unsigned char rest[56];
		} props = {.prop = {.type = 1, .location_type = 1}};
		void *pool = NULL, *memory = NULL, *from = function("cudaMallocFromPoolAsync");
		EXPECT(((int (*)(void **, const void *))function("cudaMemPoolCreate"))(&pool, &props), 0);
		EXPECT(((int (*)(void **, size_t, void *, void *))from)(&memory, SIZE, pool, stream), 0);
		EXPECT(release("cudaFreeAsync", memory), 0);
		EXPECT(CALL(cudaFree, name)(pool), 0);
		EXPECT(CALL(cudaFree, name)(pool), 1);
		puts("forwarded");
	} else if (strstr(name, "IpcGetMemHandle") || strstr(name, "IpcCloseMemHandle")) {
		char handle[64];
		int code = strstr(name, "Get") ? ((int (*)(void *, void *))function(name))(handle, pointer)
					       : CALL(cudaFree, name)(pointer);
		if (in && code == 0)
			puts("shared");
		else if (in)
			printf("refused (%d)\n", code);
		else
			puts("forwarded");
	} else {
		CHECK(!"a function this program does not know");
	}
	return 0;
}
