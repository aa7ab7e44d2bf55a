/* A stream that waits for a host thread (a gate) holds up only threads that wait for that stream: meanwhile the library
 * holds no lock. argument: malloc, pause, other, captured */
#include "host.h"

#include <semaphore.h>
#include <time.h>

int cudaFreeAsync(void *, void *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);

static sem_t gate;

static void wait_at(void *semaphore)
{
	while (sem_wait(semaphore) != 0)
		;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static _Atomic int paused;

static void *pause_it(void *unused)
{
	(void)unused;
	EXPECT(tms_pause("t"), 0);
	paused = 1;
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	void *stream = NULL, *second = NULL, *pointer = NULL;
	EXPECT(sem_init(&gate, 0, 0), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamCreate(&second), 0);
	if (!strcmp(what, "malloc")) {
		/* The allocating thread itself opens the stream, so that memory freed there cannot come. */
		void *freed = pausable(700 * MIB, "t", false);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		EXPECT(cudaFreeAsync(freed, stream), 0);
		tms_set_interesting_region(true);
		double start = now();
		EXPECT(cudaMalloc(&pointer, 700 * MIB), 2);
		CHECK(now() - start < 5);
		sem_post(&gate);
		/* Now it comes: an allocation waits for it. */
		EXPECT(cudaMalloc(&pointer, 700 * MIB), 0);
		EXPECT(cudaFree(pointer), 0);
	} else if (!strcmp(what, "captured")) {
		/* The allocating thread itself opens the stream, and a capture has put off frees that would wait for
		 * it. */
		void *freed = pausable(700 * MIB, "t", false), *paused_one = pausable(4 * MIB, "u", true), *graph = NULL;
		EXPECT(tms_pause("u"), 0);
		EXPECT(cudaStreamBeginCapture(second, 0), 0);
		EXPECT(cudaFree(freed), 0);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		double start = now();
		EXPECT(cudaStreamEndCapture(second, &graph), 0);
		EXPECT(tms_resume("u"), 0);
		tms_set_interesting_region(true);
		EXPECT(cudaMalloc(&pointer, 700 * MIB), 2);
		CHECK(now() - start < 10);
		char stats[4096];
		CHECK(tms_stats_json(stats, sizeof stats) > 0);
		CHECK(strstr(stats, "the devices have not finished with it"));
		sem_post(&gate);
		/* Now it comes: an allocation waits for it. */
		EXPECT(cudaMalloc(&pointer, 700 * MIB), 0);
		EXPECT(cudaFree(pointer), 0);
		EXPECT(cudaFree(paused_one), 0);
	} else if (!strcmp(what, "other")) {
		/* Memory that another stream frees is not held up. */
		void *held = pausable(400 * MIB, "t", false), *freed = pausable(400 * MIB, "t", false);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		EXPECT(cudaFreeAsync(held, stream), 0);
		EXPECT(cudaFreeAsync(freed, second), 0);
		pointer = pausable(500 * MIB, "u", false);
		sem_post(&gate);
	} else {
		/* A pause waits for the stream; the thread that will open it uses the library meanwhile. */
		void *mine = pausable(4 * MIB, "t", true), *others = pausable(4 * MIB, "u", true);
		EXPECT(tms_pause("u"), 0);
		fill(mine, 4 * MIB, 1);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		pthread_t thread;
		EXPECT(pthread_create(&thread, NULL, pause_it, NULL), 0);
		usleep(50000);
		EXPECT(cudaSetDevice(1), 0);
		EXPECT(cudaSetDevice(0), 0);
		EXPECT(tms_resume("u"), 0);
		pointer = pausable(3 * MIB, "t", true);
		EXPECT(tms_prepare("u", true), 0);
		EXPECT(tms_trim(), 0);
		EXPECT(cudaFreeAsync(others, second), 0);
		char stats[4096];
		CHECK(tms_stats_json(stats, sizeof stats) > 0);
		CHECK(!paused);
		sem_post(&gate);
		EXPECT(pthread_join(thread, NULL), 0);
		CHECK(paused);
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(mine, 4 * MIB, 1));
	}
	return 0;
}
