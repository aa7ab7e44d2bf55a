// Asynchronous work: when it runs, in which order, and what happens if its memory is gone.
#include <pthread.h>

#include "fixture.h"

static CUstream stream_new(unsigned flags)
{
	CUstream stream;
	OK(cuStreamCreate(&stream, flags));
	return stream;
}

static CUdeviceptr allocate(size_t size)
{
	CUdeviceptr at;
	OK(cuMemAlloc_v2(&at, size));
	return at;
}

static void work_waits_to_be_waited_for(void)
{
	start(0);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = allocate(MIB);
	OK(cuMemsetD8Async(at, 5, MIB, stream));
	CHECK(bytes(at)[0] == 0 && cudasim_stat("pending") == 1);
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[MIB - 1] == 5 && cudasim_stat("pending") == 0);
	OK(cuMemsetD32Async(at, 0x06060606, MIB / 4, stream));
	OK(cuStreamQuery(stream));
	CHECK(bytes(at)[9] == 6);
	OK(cuMemsetD8Async(at, 7, MIB, stream));
	OK(cuCtxSynchronize());
	CHECK(bytes(at)[9] == 7);
	CUdeviceptr other = allocate(MIB);
	OK(cuMemsetD8Async(at, 8, MIB, stream));
	OK(cuMemFree_v2(other)); // freeing anything waits for the device
	CHECK(bytes(at)[9] == 8);
	OK(cuMemsetD8Async(at, 9, MIB, stream));
	OK(cuStreamDestroy_v2(stream));
	CHECK(bytes(at)[9] == 9);
	CHECK(cudasim_stat("streams") == 0);
}

static void only_what_is_needed_runs(void)
{
	start(0);
	CUstream one = stream_new(CU_STREAM_NON_BLOCKING), other = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = allocate(MIB);
	OK(cuMemsetD8Async(at, 1, 1, one));
	OK(cuMemsetD8Async(at + 1, 1, 1, other));
	OK(cuStreamSynchronize(one));
	CHECK(bytes(at)[0] == 1 && bytes(at)[1] == 0); // the other stream was not waited for
	char copy[2];
	OK(cuMemcpyDtoH_v2(copy, at, 2));
	CHECK(copy[1] == 0); // nor does the default stream wait for a non-blocking one
	OK(cuCtxSynchronize());
	CHECK(bytes(at)[1] == 1);
}

static void the_legacy_stream_waits_for_blocking_ones(void)
{
	start(0);
	CUstream stream = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	char copy[2];
	OK(cuMemsetD8Async(at, 1, 1, stream));
	OK(cuMemcpyDtoH_v2(copy, at, 1));
	CHECK(copy[0] == 1);
	OK(cuMemsetD8Async(at, 2, 1, stream));
	OK(cuMemcpyDtoDAsync_v2(at + 1, at, 1, NULL)); // after the one, before the next
	OK(cuMemsetD8Async(at, 3, 1, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[0] == 3 && bytes(at)[1] == 2);
	OK(cuMemsetD8Async(at, 4, 1, CU_STREAM_LEGACY));
	OK(cuMemsetD8Async(at + 1, 4, 1, CU_STREAM_PER_THREAD)); // a blocking stream of its own
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	CHECK(bytes(at)[0] == 4 && bytes(at)[1] == 4);
}

static void events_order_streams(void)
{
	start(0);
	CUstream one = stream_new(CU_STREAM_NON_BLOCKING), other = stream_new(CU_STREAM_NON_BLOCKING);
	CUevent event, end;
	float elapsed;
	OK(cuEventCreate(&event, 0));
	OK(cuEventCreate(&end, 0));
	CUdeviceptr at = allocate(MIB);
	OK(cuEventQuery(event)); // never recorded: nothing to wait for
	OK(cuMemsetD8Async(at, 1, 1, one));
	OK(cuEventRecord(event, one));
	OK(cuMemsetD8Async(at + 100, 1, 1, one)); // behind the event
	OK(cuStreamWaitEvent(other, event, 0));
	OK(cuMemcpyDtoDAsync_v2(at + 1, at, 1, other));
	OK(cuEventRecord(end, other));
	GIVES(600, cuEventElapsedTime(&elapsed, event, end));
	OK(cuEventSynchronize(end));
	CHECK(bytes(at)[1] == 1 && bytes(at)[100] == 0);
	OK(cuEventQuery(event));
	OK(cuEventElapsedTime_v2(&elapsed, event, end));
	CHECK(elapsed >= 0);
	OK(cuEventDestroy_v2(event));
	GIVES(400, cuEventDestroy_v2(event));
	GIVES(400, cuEventRecord(event, one));
	GIVES(400, cuStreamSynchronize((CUstream)0x123450));
}

static int calls;
static CUstream seen;
static void count_call(void *data)
{
	calls += *(int *)data;
	size_t available;
	GIVES(800, cuMemGetInfo_v2(&available, NULL)); // no CUDA calls from here
}
static void count_callback(CUstream stream, int status, void *data)
{
	seen = stream;
	calls += status + *(int *)data;
}

static void host_functions(void)
{
	start(0);
	CUstream stream = stream_new(0);
	int one = 1, ten = 10;
	CUdeviceptr at = allocate(MIB);
	for (int i = 0; i < 5; i++)
		OK(cuLaunchHostFunc(stream, count_call, &one));
	OK(cuStreamAddCallback(stream, count_callback, &ten, 0));
	OK(cuMemsetD8Async(at, 3, 1, stream));
	CHECK(calls == 0);
	OK(cuStreamSynchronize(stream));
	CHECK(calls == 15 && bytes(at)[0] == 3 && seen == stream);
}

// Two threads wait for one stream: its functions run once each, in order, not at once.
static int order[200], ordered, inside;
static void note(void *data)
{
	CHECK(__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 1);
	order[ordered++] = (int)(intptr_t)data;
	__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}
static void *wait_for(void *stream)
{
	start(0);
	OK(cuStreamSynchronize(stream));
	CHECK(ordered == 200);
	return NULL;
}
static void two_threads_wait(void)
{
	start(0);
	CUstream stream = stream_new(0);
	for (intptr_t i = 0; i < 200; i++)
		OK(cuLaunchHostFunc(stream, note, (void *)i));
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, wait_for, stream);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 200; i++)
		CHECK(order[i] == i);
}

static void pinned_copies_are_late_pageable_ones_are_not(void)
{
	start(0);
	CUstream stream = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	char *pinned, pageable[16] = "pageable";
	OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
	strcpy(pinned, "first");
	OK(cuMemcpyHtoDAsync_v2(at, pinned, 16, stream));
	strcpy(pinned, "second"); // too early: the copy has not run
	OK(cuStreamSynchronize(stream));
	CHECK(!strcmp(bytes(at), "second"));
	OK(cuMemcpyHtoDAsync_v2(at, pageable, 16, stream));
	CHECK(!strcmp(bytes(at), "pageable"));
	OK(cuMemsetD8Async(at, 'x', 3, stream));
	OK(cuMemcpyDtoHAsync_v2(pageable, at, 16, stream)); // in its turn
	CHECK(!strcmp(pageable, "xxxeable"));
}

static void unmapping_does_not_wait(void)
{
	start(0);
	CUstream stream = stream_new(0);
	CUdeviceptr at = mapped(GRANULE), plain = allocate(MIB);
	OK(cuMemsetD8Async(at, 1, GRANULE, stream));
	OK(cuMemUnmap(at, GRANULE));
	GIVES(700, cuStreamSynchronize(stream));
	// The context is lost for good.
	size_t available;
	GIVES(700, cuCtxSynchronize());
	GIVES(700, cuMemGetInfo_v2(&available, NULL));
	GIVES(700, cuMemAlloc_v2(&at, 1));
	GIVES(700, cuMemFree_v2(plain));
	GIVES(700, cuMemsetD8_v2(plain, 0, 1));
	GIVES(700, cuStreamQuery(stream));
	// Only a reset brings the device back.
	OK(cuDevicePrimaryCtxReset_v2(0));
	start(0);
	CHECK(cudasim_stat("allocations") == 0);
	OK(cuMemAlloc_v2(&at, 1));
	OK(cuMemsetD8_v2(at, 0, 1));
	OK(cuCtxSynchronize());
}

static void mapping_again_does_not_hide_it(void)
{
	start(0);
	CUstream stream = stream_new(0);
	CUdeviceptr at = mapped(GRANULE);
	OK(cuMemsetD8Async(at, 1, GRANULE, stream));
	OK(cuMemUnmap(at, GRANULE));
	back(at, GRANULE);
	GIVES(700, cuCtxSynchronize());
	CHECK(bytes(at)[0] == 0);
}

static void synchronizing_first_is_right(void)
{
	start(0);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr at = mapped(GRANULE);
	for (int round = 0; round < 3; round++) {
		OK(cuMemsetD8Async(at, 1, GRANULE, stream));
		OK(cuCtxSynchronize());
		OK(cuMemUnmap(at, GRANULE));
		GIVES(1, cuMemsetD8Async(at, 1, GRANULE, stream)); // while paused
		back(at, GRANULE);
		CHECK(bytes(at)[0] == 0);
	}
	OK(cuCtxSynchronize());
}

static void access_taken_away(void)
{
	start(0);
	CUstream stream = stream_new(0);
	CUdeviceptr at = mapped(GRANULE);
	OK(cuMemsetD8Async(at, 1, GRANULE, stream));
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
	OK(cuMemSetAccess(at, GRANULE, &access, 1));
	GIVES(700, cuCtxSynchronize());
}

static void the_queue_is_bounded(void)
{
	start(0);
	CUstream stream = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	for (int i = 0; i < 5000; i++)
		OK(cuMemsetD8Async(at + (unsigned)i, 1, 1, stream));
	CHECK(cudasim_stat("pending") <= 1024 && bytes(at)[0] == 1);
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[4999] == 1);
}

MAIN(CASE(work_waits_to_be_waited_for), CASE(only_what_is_needed_runs),
     CASE(the_legacy_stream_waits_for_blocking_ones), CASE(events_order_streams), CASE(host_functions),
     CASE(two_threads_wait), CASE(pinned_copies_are_late_pageable_ones_are_not),
     CASE(unmapping_does_not_wait), CASE(mapping_again_does_not_hide_it), CASE(synchronizing_first_is_right),
     CASE(access_taken_away), CASE(the_queue_is_bounded))
