/* While a stream is being captured allocation works, a free is put off to the end of the capture, and pause and resume
 * are refused; the capture survives all of it. */
#include "host.h"

#include <semaphore.h>
#include <stdatomic.h>

int cudaGraphDestroy(void *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);

static pthread_mutex_t pausing = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool done;

/* A capture begins while another thread resumes: the copies go on, and host memory is unpinned. */
static void *capture_again_and_again(void *stream)
{
	void *graph;
	while (!atomic_load(&done)) {
		EXPECT(pthread_mutex_lock(&pausing), 0);
		EXPECT(cudaStreamBeginCapture(stream, 0), 0);
		usleep(50);
		EXPECT(cudaStreamEndCapture(stream, &graph), 0);
		EXPECT(cudaGraphDestroy(graph), 0);
		EXPECT(pthread_mutex_unlock(&pausing), 0);
		usleep(50);
	}
	return NULL;
}

static void wait_at(void *door)
{
	while (sem_wait(door) != 0)
		;
}

static void *free_in_thread(void *memory)
{
	EXPECT(cudaFree(memory), 0);
	return NULL;
}

/* A capture begins while another thread's free waits for the device. */
static void capture_beside_a_free(void *stream)
{
	void *busy, *graph, *memory = pausable(2 * MIB, "freed", false);
	sem_t door;
	pthread_t thread;
	EXPECT(sem_init(&door, 0, 0), 0);
	EXPECT(cudaStreamCreate(&busy), 0);
	EXPECT(cudaLaunchHostFunc(busy, wait_at, &door), 0);
	EXPECT(pthread_create(&thread, NULL, free_in_thread, memory), 0);
	usleep(20000);
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	EXPECT(sem_post(&door), 0);
	EXPECT(pthread_join(thread, NULL), 0);
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	EXPECT(cudaGraphDestroy(graph), 0);
}

int main(void)
{
	size_t before = free_bytes();
	void *stream = NULL, *graph = NULL;
	void *old = pausable(2 * MIB, "graph", true);
	fill(old, 2 * MIB, 5);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	void *fresh = pausable(2 * MIB, "graph", false);
	EXPECT(cudaMemsetAsync(fresh, 1, 2 * MIB, stream), 0);
	EXPECT(cudaFree(old), 0);
	EXPECT(cudaFree(old), 1);
	EXPECT(tms_pause(NULL), 900);
	CHECK(strstr(tms_last_error(), "captured"));
	EXPECT(tms_resume(NULL), 900);
	CHECK(sim_stat("handles") == 2);
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	CHECK(graph);
	EXPECT(sim_stat("handles"), 1);
	EXPECT(before - free_bytes(), 2 * MIB);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cudaFree(fresh), 0);

	/* Work in flight ends before its memory is released. */
	void *target = pausable(2 * MIB, "flight", true);
	EXPECT(cudaMemsetAsync(target, 0x5a, 2 * MIB, stream), 0);
	EXPECT(tms_pause("flight"), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	EXPECT(tms_resume("flight"), 0);
	unsigned char last = 0;
	EXPECT(cudaMemcpy(&last, (char *)target + 2 * MIB - 1, 1, 2), 0);
	EXPECT(last, 0x5a);
	EXPECT(cudaMemsetAsync(target, 1, 2 * MIB, stream), 0);
	EXPECT(cudaFree(target), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);

	capture_beside_a_free(stream);

	void *kept = pausable(64 * MIB, "kept", true);
	fill(kept, 64 * MIB, 7);
	pthread_t thread;
	EXPECT(pthread_create(&thread, NULL, capture_again_and_again, stream), 0);
	for (int cycle = 0; cycle < often(20, 5); cycle++) {
		EXPECT(pthread_mutex_lock(&pausing), 0);
		EXPECT(tms_pause("kept"), 0);
		EXPECT(pthread_mutex_unlock(&pausing), 0);
		int code;
		while ((code = tms_resume("kept")) == 900)
			;
		EXPECT(code, 0);
	}
	atomic_store(&done, true);
	EXPECT(pthread_join(thread, NULL), 0);
	CHECK(filled(kept, 64 * MIB, 7));
	return 0;
}
