/* Two devices. Called as: devices both|ordered, or: devices runtime|driver|release, the way in which a context ends */
#include "host.h"

static const char *what;
static __typeof__(cuCtxGetCurrent) *current;

/* A segment belongs to the device current at its cudaMalloc; pause and resume cover both and leave the caller's device
 * and context alone. */
static void both(void)
{
	void *segment[2];
	size_t before[2];
	for (int d = 0; d < 2; d++) {
		EXPECT(cudaSetDevice(d), 0);
		before[d] = free_bytes();
		segment[d] = kept_memory(4 * MIB, "both", (unsigned)d);
		EXPECT(before[d] - free_bytes(), 4 * MIB);
	}
	for (int here = 0; here < 2; here++) {
		int device = -1;
		void *context = NULL, *after = NULL;
		EXPECT(cudaSetDevice(here), 0);
		EXPECT(current(&context), 0);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(current(&after), 0);
		CHECK(context == after);
		EXPECT(cudaGetDevice(&device), 0);
		EXPECT(device, here);
		for (int d = 0; d < 2; d++) {
			EXPECT(cudaSetDevice(d), 0);
			EXPECT(free_bytes(), before[d]);
		}
		EXPECT(cudaSetDevice(here), 0);
		EXPECT(tms_resume("both"), 0);
		EXPECT(current(&after), 0);
		CHECK(context == after);
	}
	for (int d = 0; d < 2; d++)
		CHECK(filled(segment[d], 4 * MIB, (unsigned)d));
	/* Freed with the other device current. */
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaFree(segment[1]), 0);
	EXPECT(cudaSetDevice(1), 0);
	EXPECT(cudaFree(segment[0]), 0);
	EXPECT(free_bytes(), before[1]);
}

static void reaches(void *segment)
{
	char bytes[64];
	EXPECT(cudaMemcpy(bytes, segment, sizeof bytes, 2), 0);
}

/* A device whose context has ended, and that is used again, can reach the other device's segments as before: the
 * earlier segments and those made without the context. */
static void used_again(void)
{
	EXPECT(cudaSetDevice(0), 0);
	void *first = pausable(2 * MIB, "reached", true);
	for (int i = 0; i < 3; i++) {
		EXPECT(cudaSetDevice(1), 0);
		reaches(first);
		if (strcmp(what, "runtime") == 0) {
			EXPECT(cudaDeviceReset(), 0);
		} else {
			bool release = strcmp(what, "release") == 0;
			const char *name = release ? "cuDevicePrimaryCtxRelease_v2" : "cuDevicePrimaryCtxReset_v2";
			EXPECT(((__typeof__(cudaSetDevice) *)dlsym(RTLD_DEFAULT, name))(1), 0);
		}
		EXPECT(cudaSetDevice(0), 0);
		void *second = pausable(2 * MIB, "reached", true);
		EXPECT(cudaSetDevice(1), 0);
		reaches(first);
		reaches(second);
	}
}

static void *stream[2];

static void *made(int device)
{
	EXPECT(cudaSetDevice(device), 0);
	return pausable(2 * MIB, "ordered", false);
}

static void note(void *ran)
{
	atomic_store((_Atomic int *)ran, 1);
}

static void another_device(int (*free_async)(void *, void *), int here, int of)
{
	for (int memory = 0; memory < 2; memory++) {
		_Atomic int ran = 0;
		uint64_t handles = sim_stat("handles");
		void *segment = made(memory), *before = NULL, *after = NULL;
		EXPECT(cudaSetDevice(here), 0);
		EXPECT(current(&before), 0);
		EXPECT(cudaLaunchHostFunc(stream[of], note, (void *)&ran), 0);
		EXPECT(free_async(segment, stream[of]), 0);
		EXPECT(current(&after), 0);
		CHECK(before == after);
		becomes("handles", handles);
		EXPECT(atomic_load(&ran), 1); /* the free has waited for the stream's earlier work */
	}
}

static int (*free_on_thread)(void *, void *);

static void *first_call(void *segment)
{
	EXPECT(free_on_thread(segment, NULL), 0);
	return NULL;
}

/* A thread's first call, with the default stream. */
static void fresh_thread(int (*free_async)(void *, void *))
{
	uint64_t handles = sim_stat("handles");
	void *segment = made(0);
	free_on_thread = free_async;
	on_a_thread(first_call, segment);
	becomes("handles", handles);
}

/* Stream-ordered frees on streams of a device other than the calling thread's: the memory goes when the stream has come
 * to the free, by the names of both APIs. */
static void ordered(void)
{
	__typeof__(cudaFreeAsync) *driver_free = dlsym(RTLD_DEFAULT, "cuMemFreeAsync");
	CHECK(driver_free);
	for (int device = 0; device < 2; device++) {
		EXPECT(cudaSetDevice(device), 0);
		EXPECT(cudaStreamCreate(&stream[device]), 0);
	}
	fresh_thread(cudaFreeAsync);
	for (int here = 0; here < 2; here++)
		for (int of = 0; of < 2; of++) {
			another_device(cudaFreeAsync, here, of);
			another_device(driver_free, here, of);
		}
	EXPECT(cudaFreeAsync(made(0), (void *)0x12340), 400); /* no stream */
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	what = argv[1];
	current = (__typeof__(current))simulator("cuCtxGetCurrent");
	CHECK(RUN_PART(what, {"both", both}, {"ordered", ordered}, {"runtime", used_again}, {"driver", used_again},
		       {"release", used_again}));
	return 0;
}
