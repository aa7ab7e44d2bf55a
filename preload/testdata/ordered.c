/* Stream-ordered frees on streams of a device other than the calling thread's: the memory goes when the stream has come
 * to the free, by the names of both APIs. Called as: ordered, with two devices. */
#include "host.h"

#include <stdatomic.h>

int cudaFreeAsync(void *, void *);
int cudaMallocAsync(void **, size_t, void *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);

static void *stream[2];

static void *made(int device)
{
	EXPECT(cudaSetDevice(device), 0);
	return pausable(2 * MIB, "ordered", false);
}

static void handles_become(uint64_t wanted)
{
	for (int i = 0; i < 5000 && sim_stat("handles") != wanted; i++)
		usleep(1000);
	EXPECT(sim_stat("handles"), wanted);
}

static void note(void *ran)
{
	atomic_store((_Atomic int *)ran, 1);
}

static void another_device(int (*free_async)(void *, void *), int current, int of)
{
	int (*context)(void **) = (int (*)(void **))simulator("cuCtxGetCurrent");
	for (int memory = 0; memory < 2; memory++) {
		_Atomic int ran = 0;
		uint64_t handles = sim_stat("handles");
		void *segment = made(memory), *before = NULL, *after = NULL;
		EXPECT(cudaSetDevice(current), 0);
		EXPECT(context(&before), 0);
		EXPECT(cudaLaunchHostFunc(stream[of], note, (void *)&ran), 0);
		EXPECT(free_async(segment, stream[of]), 0);
		EXPECT(context(&after), 0);
		CHECK(before == after);
		handles_become(handles);
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
	pthread_t thread;
	uint64_t handles = sim_stat("handles");
	void *segment = made(0);
	free_on_thread = free_async;
	EXPECT(pthread_create(&thread, NULL, first_call, segment), 0);
	EXPECT(pthread_join(thread, NULL), 0);
	handles_become(handles);
}

int main(void)
{
	int (*driver_free)(void *, void *) = (int (*)(void *, void *))dlsym(RTLD_DEFAULT, "cuMemFreeAsync");
	CHECK(driver_free);
	for (int device = 0; device < 2; device++) {
		EXPECT(cudaSetDevice(device), 0);
		EXPECT(cudaStreamCreate(&stream[device]), 0);
	}
	fresh_thread(cudaFreeAsync);
	for (int current = 0; current < 2; current++)
		for (int of = 0; of < 2; of++) {
			another_device(cudaFreeAsync, current, of);
			another_device(driver_free, current, of);
		}
	EXPECT(cudaFreeAsync(made(0), (void *)0x12340), 400); /* no stream */
	return 0;
}
