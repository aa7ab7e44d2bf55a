/* Four threads that ask streams and events in a tight loop whether they are done, beside one that gives the device
 * work: they go on asking while that one is held up. */
#include "driver.h"
#include "steps.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct CUevent_st *event;
int cuDevicePrimaryCtxRetain(context *made, int device);
int cuStreamQuery(stream of);
int cuEventCreate(event *made, unsigned flags);
int cuEventRecord(event of, stream in);
int cuEventQuery(event of);
int cuEventSynchronize(event of);
int cuEventElapsedTime(float *milliseconds, event from, event to);
int cuMemGetInfo_v2(size_t *available, size_t *total);

enum { POLLERS = 4, NOT_READY = 600, COUNT = 16 << 20, POLLED = 1 << 20 };

static context all;
static atomic_bool stop;
static atomic_int number; /* of steps */

static void done_or_not(int code)
{
	if (code != NOT_READY)
		CHECK(code);
}

static void *poll_device(void *which)
{
	stream in;
	event first, last;
	pointer memory;
	unsigned found;
	CHECK(cuCtxSetCurrent(all));
	CHECK(cuStreamCreate(&in, NON_BLOCKING));
	CHECK(cuEventCreate(&first, 0));
	CHECK(cuEventCreate(&last, 0));
	CHECK(cuMemAlloc_v2(&memory, POLLED * sizeof found));
	for (unsigned round = 0; !stop; round++) {
		CHECK(cuEventRecord(first, in));
		CHECK(cuMemsetD32Async(memory, round, POLLED, in));
		CHECK(cuEventRecord(last, in));
		for (int i = 0, until = number + 4; number < until && !stop; i++) {
			float milliseconds;
			size_t available, total;
			done_or_not(cuStreamQuery(in));
			done_or_not(cuStreamQuery(NULL));
			done_or_not(cuEventQuery(last));
			if (i % 16 == *(int *)which) {
				CHECK(cuEventSynchronize(last));
				CHECK(cuStreamSynchronize(in));
				CHECK(cuEventElapsedTime(&milliseconds, first, last));
				CHECK(cuCtxSynchronize());
				CHECK(cuMemGetInfo_v2(&available, &total));
			}
		}
		CHECK(cuMemcpyDtoHAsync_v2(&found, memory + (POLLED - 1) * sizeof found, sizeof found, in));
		CHECK(cuStreamSynchronize(in));
		CHECK(found != round);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? atoi(argv[1]) : 0;
	static unsigned shown[1024];
	pthread_t pollers[POLLERS];
	int numbers[POLLERS];
	pointer values;
	stream in;
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&all, 0));
	CHECK(cuCtxSetCurrent(all));
	CHECK(cuStreamCreate(&in, NON_BLOCKING));
	CHECK(cuMemAlloc_v2(&values, COUNT * sizeof *shown));
	CHECK(cuMemsetD32Async(values, 1, COUNT, in));
	for (int i = 0; i < POLLERS; i++) {
		numbers[i] = i;
		CHECK(pthread_create(&pollers[i], NULL, poll_device, &numbers[i]));
	}
	for (; goes_on(number, steps); number++) {
		const size_t half = COUNT / 2, at = (size_t)number * 4096 % half;
		CHECK(cuMemcpyDtoDAsync_v2(values, values + half * sizeof *shown, at * sizeof *shown, in));
		CHECK(cuMemsetD32Async(values + (half + at) * sizeof *shown, (unsigned)number, half - at, in));
		CHECK(cuMemcpyDtoHAsync_v2(shown, values + at * sizeof *shown, sizeof shown, in));
		CHECK(cuStreamSynchronize(in));
		note(shown, sizeof shown);
		if (number == 0)
			ready(COUNT * sizeof *shown);
	}
	stop = true;
	for (int i = 0; i < POLLERS; i++)
		CHECK(pthread_join(pollers[i], NULL));
	return end(number);
}
