// Asynchronous work: when it runs, in which order, and what happens when its memory is gone.
#include <semaphore.h>
#include <sys/wait.h>

#include "cases.h"

STARTED(work_waits_to_be_waited_for)
{
	CUstream stream = apart();
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

STARTED(a_context_can_be_asked)
{
	CUstream one = apart(), other = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	CUcontext context;
	CUevent event;
	OK(cuCtxGetCurrent(&context));
	OK(cuEventCreate(&event, 2));
	OK(cuCtxRecordEvent(context, event)); // an event of no work
	OK(cuEventQuery(event));
	OK(cuMemsetD8Async(at, 1, 1, one));
	OK(cuMemsetD8Async(at + 1, 1, 1, other));
	OK(cuCtxRecordEvent(context, event));
	OK(cuMemsetD8Async(at + 2, 1, 1, one));
	OK(cuEventSynchronize(event));
	CHECK(bytes(at)[0] == 1 && bytes(at)[1] == 1 && bytes(at)[2] == 0);
	OK(cuEventQuery(event));
	OK(cuCtxRecordEvent(context, event));
	CHECK(cuStreamWaitEvent(other, event, 0) == CUDA_ERROR_NOT_SUPPORTED);
	OK(cuEventQuery(event)); // asking makes the work happen
	CHECK(bytes(at)[2] == 1 && cudasim_stat("pending") == 0);
	CHECK(cuCtxRecordEvent(NULL, event) == CUDA_ERROR_INVALID_CONTEXT);
	CUcontext second;
	OK(cuCtxCreate_v2(&second, 0, 0));
	CHECK(cuCtxRecordEvent(second, event) == CUDA_ERROR_INVALID_HANDLE);
	OK(cuCtxDestroy_v2(second));
	OK(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuCtxRecordEvent(context, event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	OK(cuEventDestroy_v2(event));
}

STARTED(only_what_is_needed_runs)
{
	CUstream one = apart(), other = apart();
	CUdeviceptr at = allocate(MIB);
	OK(cuMemsetD8Async(at, 1, 1, one));
	OK(cuMemsetD8Async(at + 1, 1, 1, other));
	OK(cuStreamSynchronize(one));
	CHECK(bytes(at)[0] == 1 && bytes(at)[1] == 0); // it did not wait for the other stream
	char copy[2];
	OK(cuMemcpyDtoH_v2(copy, at, 2));
	CHECK(copy[1] == 0); // nor does the default stream wait for a non-blocking one
	OK(cuCtxSynchronize());
	CHECK(bytes(at)[1] == 1);
}

STARTED(the_legacy_stream_waits_for_blocking_ones)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	char copy[2];
	OK(cuMemsetD8Async(at, 1, 1, stream));
	OK(cuMemcpyDtoH_v2(copy, at, 1));
	CHECK(copy[0] == 1);
	OK(cuMemsetD8Async(at, 2, 1, stream));
	OK(cuMemcpyDtoDAsync_v2(at + 1, at, 1, NULL)); // after the previous fill, before the next
	OK(cuMemsetD8Async(at, 3, 1, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[0] == 3 && bytes(at)[1] == 2);
	OK(cuMemsetD8Async(at, 4, 1, CU_STREAM_LEGACY));
	OK(cuMemsetD8Async(at + 1, 4, 1, CU_STREAM_PER_THREAD)); // a blocking stream of its own
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	CHECK(bytes(at)[0] == 4 && bytes(at)[1] == 4);
}

STARTED(events_order_streams)
{
	CUstream one = apart(), other = apart();
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
static void count_call(void *data)
{
	calls += *(int *)data;
	GIVES(800, cuMemGetInfo_v2(&(size_t){0}, NULL)); // no CUDA calls from here
}

STARTED(host_functions)
{
	CUstream stream = stream_new(0);
	int one = 1;
	CUdeviceptr at = allocate(MIB);
	for (int i = 0; i < 5; i++)
		OK(cuLaunchHostFunc(stream, count_call, &one));
	OK(cuMemsetD8Async(at, 3, 1, stream));
	CHECK(calls == 0);
	OK(cuStreamSynchronize(stream));
	CHECK(calls == 5 && bytes(at)[0] == 3);
}

// Two threads wait for one stream: its functions run once each, in order, never at the same time.
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
STARTED(two_threads_wait)
{
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

STARTED(pinned_copies_are_late_pageable_ones_are_not)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	char *locked = pinned(4096), pageable[16] = "pageable";
	strcpy(locked, "first");
	OK(cuMemcpyHtoDAsync_v2(at, locked, 16, stream));
	strcpy(locked, "second"); // too early: the copy has not run
	OK(cuStreamSynchronize(stream));
	CHECK(!strcmp(bytes(at), "second"));
	OK(cuMemcpyHtoDAsync_v2(at, pageable, 16, stream));
	CHECK(!strcmp(bytes(at), "pageable"));
	OK(cuMemsetD8Async(at, 'x', 3, stream));
	OK(cuMemcpyDtoHAsync_v2(pageable, at, 16, stream)); // in its turn
	CHECK(!strcmp(pageable, "xxxeable"));
}

STARTED(unmapping_does_not_wait)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at = mapped(GRANULE), plain = allocate(MIB);
	OK(cuMemsetD8Async(at, 1, GRANULE, stream));
	OK(cuMemUnmap(at, GRANULE));
	GIVES(700, cuStreamSynchronize(stream));
	// The context is lost for good.
	GIVES(700, cuCtxSynchronize());
	GIVES(700, cuMemGetInfo_v2(&(size_t){0}, NULL));
	GIVES(700, cuMemAlloc_v2(&at, 1));
	GIVES(700, cuMemFree_v2(plain));
	GIVES(700, cuMemsetD8_v2(plain, 0, 1));
	GIVES(700, cuStreamQuery(stream));
	// Only a reset brings the device back.
	OK(cuDevicePrimaryCtxReset_v2(0));
	start(0);
	CHECK(cudasim_stat("allocations") == 0);
	OK(cuMemsetD8_v2(allocate(1), 0, 1));
	OK(cuCtxSynchronize());
}

STARTED(mapping_again_does_not_hide_it)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at = mapped(GRANULE);
	OK(cuMemsetD8Async(at, 1, GRANULE, stream));
	OK(cuMemUnmap(at, GRANULE));
	back(at, GRANULE);
	GIVES(700, cuCtxSynchronize());
	CHECK(bytes(at)[0] == 0);
}

STARTED(synchronizing_first_is_right)
{
	CUstream stream = apart();
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

STARTED(access_taken_away)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at = mapped(GRANULE);
	OK(cuMemsetD8Async(at, 1, GRANULE, stream));
	OK(set_access(at, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
	GIVES(700, cuCtxSynchronize());
}

STARTED(the_queue_is_bounded)
{
	CUstream stream = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	for (int i = 0; i < 5000; i++)
		OK(cuMemsetD8Async(at + (unsigned)i, 1, 1, stream));
	CHECK(cudasim_stat("pending") <= 1024 && bytes(at)[0] == 1);
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[4999] == 1);
}

// A host function that waits for a host thread, which must post once for each stream that it is on.
static sem_t gate;
static int entered;
static void wait_at_gate(void *unused)
{
	(void)unused;
	GIVES(800, cuMemGetInfo_v2(&(size_t){0}, NULL));
	__atomic_add_fetch(&entered, 1, __ATOMIC_SEQ_CST);
	while (sem_wait(&gate))
		;
}

static void wait_until_entered(int count)
{
	while (__atomic_load_n(&entered, __ATOMIC_SEQ_CST) < count)
		usleep(100);
}

static void put_gate(CUstream stream)
{
	alarm(120); // a wait that should not wait for the gate would never end
	OK(cuLaunchHostFunc(stream, wait_at_gate, NULL));
}

static void *open_soon(void *opened)
{
	usleep(50000);
	*(int *)opened = 1;
	sem_post(&gate);
	return NULL;
}

static pthread_t opener;
static int opened;
static void open_gate_soon(void)
{
	opened = 0;
	CHECK(!pthread_create(&opener, NULL, open_soon, &opened));
}
static void was_opened(void)
{
	CHECK(opened);
	pthread_join(opener, NULL);
}

// A call waits until the gate is opened.
#define WAITS(call)                                                                                          \
	do {                                                                                                 \
		open_gate_soon();                                                                            \
		call;                                                                                        \
		was_opened();                                                                                \
	} while (0)

static CUevent recorded(CUstream stream)
{
	CUevent event;
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventRecord(event, stream));
	return event;
}

static void *synchronize(void *stream)
{
	start(0);
	OK(cuStreamSynchronize(stream));
	return NULL;
}

STARTED(gated_beside_another_stream)
{
	CUstream gated = apart(), other = apart();
	CUdeviceptr at = allocate(MIB);
	put_gate(gated);
	OK(cuMemsetD8Async(at, 1, 1, gated));
	CUevent behind = recorded(gated);
	int one = 1;
	pthread_t first, second;
	pthread_create(&first, NULL, synchronize, gated);
	wait_until_entered(1);
	pthread_create(&second, NULL, synchronize, gated);
	for (int round = 1; round < 4; round++) {
		OK(cuMemsetD8Async(at + 1, (unsigned char)round, 1, other));
		OK(cuLaunchHostFunc(other, count_call, &one));
		CUevent event = recorded(other);
		OK(round == 1 ? cuStreamSynchronize(other) : cuEventSynchronize(event));
		CHECK(bytes(at)[0] == 0 && bytes(at)[1] == round && calls == round);
		GIVES(600, cuEventQuery(behind));
		GIVES(600, cuStreamQuery(gated));
	}
	OK(cuStreamDestroy_v2(other));
	sem_post(&gate);
	pthread_join(first, NULL);
	pthread_join(second, NULL);
	OK(cuEventQuery(behind));
	CHECK(bytes(at)[0] == 1 && entered == 1 && cudasim_stat("pending") == 0);
}

STARTED(queries_do_not_wait)
{
	CUstream gated = stream_new(0), other = apart();
	CUdeviceptr at = allocate(MIB);
	OK(cuMemsetD8Async(at, 1, 1, gated));
	CUevent before = recorded(gated);
	put_gate(gated);
	CUevent behind = recorded(gated);
	OK(cuMemsetD8Async(at, 2, 1, gated));
	OK(cuMemsetD8Async(at + 1, 3, 1, other));
	for (int i = 0; i < 10; i++) {
		GIVES(600, cuEventQuery(behind));
		OK(cuEventQuery(before));
	}
	wait_until_entered(1);
	CHECK(bytes(at)[0] == 1 && bytes(at)[1] == 0); // nothing queried the other stream
	OK(cuStreamQuery(other));
	CHECK(bytes(at)[1] == 3);
	sem_post(&gate);
	COMES_TRUE(cuStreamQuery(gated));
	OK(cuEventQuery(behind));
	CHECK(bytes(at)[0] == 2 && entered == 1);

	for (int i = 0; i < 20; i++)
		OK(cuLaunchHostFunc(gated, note, (void *)(intptr_t)i));
	COMES_TRUE(cuStreamQuery(gated));
	CHECK(ordered == 20 && order[19] == 19);
}

STARTED(what_waits_for_an_event_behind_a_gate)
{
	CUstream gated = apart(), second = apart(), third = apart();
	CUdeviceptr at = allocate(MIB);
	CUevent before = recorded(gated);
	put_gate(gated);
	CUevent behind = recorded(gated);
	OK(cuMemsetD8Async(at, 1, 1, second));
	CUevent not_yet = recorded(second);
	OK(cuStreamWaitEvent(second, before, 0));
	CUevent not_yet_either = recorded(second);
	OK(cuStreamWaitEvent(second, behind, 0));
	OK(cuMemsetD8Async(at, 2, 1, second));
	OK(cuStreamWaitEvent(third, not_yet_either, 0));
	OK(cuMemsetD8Async(at + 1, 3, 1, third));
	CUevent last = recorded(third);
	OK(cuStreamWaitEvent(third, recorded(second), 0)); // in two steps
	GIVES(600, cuStreamQuery(second));
	CHECK(bytes(at)[0] == 1);
	OK(cuEventSynchronize(not_yet));
	OK(cuEventSynchronize(not_yet_either));
	OK(cuEventSynchronize(last));
	CHECK(bytes(at)[1] == 3);
	GIVES(600, cuStreamQuery(third));
	WAITS(OK(cuStreamSynchronize(third)));
	CHECK(bytes(at)[0] == 2);
}

STARTED(gates_and_the_legacy_stream)
{
	CUstream gated = stream_new(0), second = stream_new(0), beside = apart();
	CUdeviceptr at = allocate(MIB);
	put_gate(gated);
	OK(cuMemsetD8Async(at, 1, 1, second)); // before the legacy stream's
	CUevent early = recorded(second);
	OK(cuMemsetD8Async(at + 1, 2, 1, NULL));
	OK(cuMemsetD8Async(at, 3, 1, second));
	OK(cuMemsetD8Async(at + 2, 4, 1, beside));
	GIVES(600, cuStreamQuery(NULL));
	GIVES(600, cuStreamQuery(second));
	OK(cuEventSynchronize(early));
	OK(cuStreamSynchronize(beside));
	CHECK(bytes(at)[0] == 1 && bytes(at)[1] == 0 && bytes(at)[2] == 4);
	WAITS(OK(cuMemsetD8_v2(at + 3, 5, 1))); // on the legacy stream
	CHECK(bytes(at)[1] == 2 && bytes(at)[3] == 5);

	put_gate(CU_STREAM_LEGACY);
	OK(cuMemsetD8Async(at, 6, 1, second));
	OK(cuMemsetD8Async(at + 2, 7, 1, beside));
	OK(cuStreamSynchronize(beside));
	GIVES(600, cuStreamQuery(second));
	GIVES(600, cuStreamQuery(NULL));
	CHECK(bytes(at)[0] == 3 && bytes(at)[2] == 7);
	WAITS(OK(cuStreamSynchronize(second)));
	CHECK(bytes(at)[0] == 6);
}

// A wait for everything waits for the gate, and for any stream in it.
STARTED(the_context_waits_for_its_gates)
{
	CUstream gated = apart();
	CUdeviceptr at = allocate(MIB);
	for (int round = 0; round < 6; round++) {
		put_gate(gated);
		OK(cuMemsetD8Async(at, (unsigned char)round, 1, gated));
		if (round % 2)
			GIVES(600, cuStreamQuery(gated));
		open_gate_soon();
		if (round < 2)
			OK(cuCtxSynchronize());
		else if (round < 4)
			OK(cuMemFree_v2(allocate(MIB)));
		else
			OK(cuStreamSynchronize(gated));
		was_opened();
		CHECK(bytes(at)[0] == round);
	}
	put_gate(gated);
	GIVES(600, cuStreamQuery(gated));
	WAITS(OK(cuStreamDestroy_v2(gated)));
}

STARTED(host_memory_is_given_back_beside_a_gate)
{
	CUstream gated = apart(), other = apart();
	CUdeviceptr at = allocate(MIB);
	char *used = malloc(MIB), *unused = malloc(MIB), *allocated = pinned(MIB), *read = pinned(MIB);
	OK(cuMemHostRegister_v2(used, MIB, 0));
	OK(cuMemHostRegister_v2(unused, MIB, 0));
	put_gate(gated);
	OK(cuMemcpyDtoHAsync_v2(used + 100, at, 100, gated));
	OK(cuMemcpyHtoDAsync_v2(at, read, 100, gated));
	OK(cuMemsetD8Async(at + 100, 1, 1, other));
	OK(cuMemHostUnregister(unused));
	CHECK(bytes(at)[100] == 1); // work that can run does run
	OK(cuMemFreeHost(allocated));
	OK(cuMemsetD8Async(at, 2, 100, other));
	OK(cuStreamSynchronize(other)); // or the gate might open first
	GIVES(600, cuStreamQuery(gated));
	WAITS(OK(cuMemHostUnregister(used)));
	CHECK(used[199] == 2);

	put_gate(gated);
	OK(cuMemcpyHtoDAsync_v2(at, read, 100, gated));
	WAITS(OK(cuMemFreeHost(read)));
	CHECK(bytes(at)[0] == 0 && cudasim_stat("pinned_bytes") == 0);
}

STARTED(issuing_beside_a_gate)
{
	CUstream gated = apart(), other = apart();
	CUdeviceptr at = allocate(MIB);
	put_gate(gated);
	for (int i = 0; i < 1000; i++)
		OK(cuMemsetD8Async(at, 1, 1, gated));
	for (int i = 0; i < 3000; i++)
		OK(cuMemsetD8Async(at + 1 + (unsigned)i, 2, 1, other));
	OK(cuStreamSynchronize(other));
	CHECK(bytes(at)[0] == 0 && bytes(at)[3000] == 2);
	open_gate_soon();
	for (int i = 0; i < 3000; i++) // it has room for 1024
		OK(cuMemsetD8Async(at, 3, 1, gated));
	was_opened();
	CHECK(bytes(at)[0] == 3);
	OK(cuStreamSynchronize(gated));
}

// An allocation finds memory that no gate holds up.
STARTED(allocating_beside_a_gate)
{
	CUstream gated = apart(), other = apart();
	CUdeviceptr first, second, third;
	OK(cuMemAllocAsync(&first, 30 * MIB, gated));
	OK(cuMemAllocAsync(&second, 30 * MIB, gated));
	put_gate(gated);
	OK(cuMemFreeAsync(first, gated));
	OK(cuMemFreeAsync(second, other));
	OK(cuMemAllocAsync(&third, 30 * MIB, other));
	CHECK(third == second && entered == 0);
	WAITS(OK(cuMemAllocAsync(&second, 30 * MIB, other)));
	CHECK(second == first);
}

STARTED(gates_over_fork_and_reset)
{
	CUstream gated = stream_new(0);
	put_gate(gated);
	GIVES(600, cuStreamQuery(gated));
	wait_until_entered(1);
	pid_t child = fork();
	if (!child) {
		alarm(120);
		GIVES(3, cuStreamQuery(gated));
		GIVES(3, cuCtxSynchronize());
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	GIVES(600, cuStreamQuery(gated));

	cudasim_reset();
	CHECK(cudasim_stat("pending") == 0);
	start(0);
	gated = stream_new(0);
	CUdeviceptr at = allocate(MIB);
	OK(cuMemsetD8Async(at, 1, 1, gated));
	OK(cuCtxSynchronize()); // it does not wait for work from before the reset
	CHECK(bytes(at)[0] == 1);
	put_gate(gated);
	OK(cuMemsetD8Async(at, 2, 1, gated));
	GIVES(600, cuStreamQuery(gated));
	wait_until_entered(2);
	sem_post(&gate);
	sem_post(&gate);
	COMES_TRUE(cuStreamQuery(gated));
	CHECK(bytes(at)[0] == 2);
}
