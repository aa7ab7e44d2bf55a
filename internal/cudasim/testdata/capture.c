// Stream capture: what it forbids, and that graphs replay what was captured.
#include "cases.h"

static CUstream stream;
static CUdeviceptr at;

static void begin(unsigned flags, CUstreamCaptureMode mode)
{
	start(0);
	if (!at)
		OK(cuMemAlloc_v2(&at, MIB));
	OK(cuStreamCreate(&stream, flags));
	OK(cuStreamBeginCapture_v2(stream, mode));
}

static void ends_invalidated(void)
{
	CUgraph graph = (CUgraph)1;
	CUstreamCaptureStatus status;
	OK(cuStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	GIVES(901, cuMemsetD8Async(at, 1, 1, stream));
	GIVES(901, cuStreamEndCapture(stream, &graph));
	CHECK(graph == NULL && cudasim_stat("graphs") == 0);
	OK(cuStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuMemsetD8Async(at, 1, 1, stream)); // an ordinary stream again
	OK(cuStreamSynchronize(stream));
}

// A call gives this code while a stream is captured, and ends the capture.
#define FORBIDS(flags, mode, code, call)                                                                     \
	do {                                                                                                 \
		begin(flags, mode);                                                                          \
		GIVES(code, call);                                                                           \
		ends_invalidated();                                                                          \
	} while (0)

static CUgraph ends_well(void)
{
	CUgraph graph;
	OK(cuStreamEndCapture(stream, &graph));
	CHECK(graph != NULL);
	return graph;
}

CASE(waiting_is_forbidden)
{
	FORBIDS(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED, 900, cuCtxSynchronize());
	FORBIDS(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED, 900, cuStreamSynchronize(stream));
	FORBIDS(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED, 900, cuStreamQuery(stream));
	FORBIDS(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL, 900, cuMemFree_v2(at));
	CHECK(cudasim_stat("allocations") == 1); // it was not freed
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemFree_v2(at));
	ends_well();
}

static void *allocate_elsewhere(void *code)
{
	CUdeviceptr mine;
	start(0);
	GIVES((int)(intptr_t)code, cuMemAlloc_v2(&mine, MIB));
	return NULL;
}

// Uses another stream, so that only the modes matter.
static void *ask_elsewhere(void *code)
{
	CUstream other;
	start(0);
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	GIVES((int)(intptr_t)code, cuStreamQuery(other));
	OK(cuStreamDestroy_v2(other));
	return NULL;
}

static void elsewhere(void *(*call)(void *), int code)
{
	on_a_thread(call, (void *)(intptr_t)code);
}

CASE(allocation_depends_on_the_modes)
{
	CUdeviceptr more;
	FORBIDS(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL, 900, cuMemAlloc_v2(&more, MIB));
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
	elsewhere(allocate_elsewhere, 900);
	ends_invalidated();
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
	elsewhere(ask_elsewhere, 900);
	ends_invalidated();
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	elsewhere(allocate_elsewhere, 0);
	elsewhere(ask_elsewhere, 0);
	GIVES(900, cuMemAlloc_v2(&more, MIB));
	ends_invalidated();
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemAlloc_v2(&more, MIB));
	ends_well();
	// A thread in relaxed mode may make the calls, in every mode of the capture.
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuMemAlloc_v2(&more, MIB));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
	// Memory by handle is never forbidden.
	mapped(GRANULE);
	ends_well();
}

CASE(the_legacy_stream_is_forbidden)
{
	FORBIDS(0, CU_STREAM_CAPTURE_MODE_RELAXED, 906, cuMemsetD8_v2(at, 1, 1));
	FORBIDS(0, CU_STREAM_CAPTURE_MODE_RELAXED, 906, cuMemsetD8Async(at, 1, 1, NULL));
	begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemsetD8_v2(at, 1, 1)); // tied to blocking streams only
	OK(cuMemsetD8Async(at, 1, 1, NULL));
	ends_well();
	GIVES(900, cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static void *end_elsewhere(void *unused)
{
	CUgraph graph;
	start(0);
	GIVES(908, cuStreamEndCapture(stream, &graph));
	return unused;
}

CASE(beginning_and_ending)
{
	CUgraph graph;
	CUstreamCaptureStatus status;
	begin(0, CU_STREAM_CAPTURE_MODE_GLOBAL);
	GIVES(401, cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	on_a_thread(end_elsewhere, NULL);
	OK(cuStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	CHECK(ends_well());
	GIVES(401, cuStreamEndCapture(stream, &graph));
	GIVES(1, cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)7));
}

static int host_calls;
static void host_call(void *data)
{
	host_calls += *(int *)data;
}

CASE(graphs_replay)
{
	int one = 1;
	char *pinned;
	start(0);
	OK(cuMemAlloc_v2(&at, MIB));
	OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
	begin(0, CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuMemsetD8Async(at, 7, 100, stream));
	OK(cuMemcpyHtoDAsync_v2(at + 50, pinned, 10, stream));
	OK(cuMemcpyDtoDAsync_v2(at + 200, at + 45, 10, stream));
	OK(cuLaunchHostFunc(stream, host_call, &one));
	CUgraph graph = ends_well();
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[0] == 0 && host_calls == 0); // captured, not run
	CUgraphExec exec = instantiated(graph);
	OK(cuGraphDestroy(graph));
	for (int round = 1; round <= 3; round++) {
		memset(pinned, 10 + round, 10);
		OK(cuGraphLaunch(exec, stream));
		CHECK(host_calls == round - 1);
		OK(cuStreamSynchronize(stream));
		CHECK(host_calls == round && bytes(at)[49] == 7 && bytes(at)[204] == 7 &&
		      bytes(at)[205] == 10 + round);
		OK(cuMemsetD8_v2(at, 0, MIB));
	}
	OK(cuGraphExecDestroy(exec));
	GIVES(1, cuGraphLaunch(exec, stream));
	GIVES(1, cuGraphDestroy(graph));
	CHECK(cudasim_stat("graphs") == 0 && cudasim_stat("graph_execs") == 0);
}

STARTED(graphs_on_paused_memory)
{
	CUdeviceptr memory = mapped(GRANULE);
	begin(0, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemsetD8Async(memory, 7, GRANULE, stream));
	CUgraph graph = ends_well();
	CUgraphExec exec = instantiated(graph);
	OK(cuGraphLaunch(exec, stream));
	OK(cuCtxSynchronize());
	OK(cuMemUnmap(memory, GRANULE));
	back(memory, GRANULE); // the same address again: the graph works as before
	OK(cuGraphLaunch(exec, stream));
	OK(cuCtxSynchronize());
	CHECK(bytes(memory)[5] == 7);
	OK(cuMemUnmap(memory, GRANULE));
	OK(cuGraphLaunch(exec, stream));
	GIVES(700, cuStreamSynchronize(stream));
}

CASE(capture_into_a_graph)
{
	CUgraph graph, same;
	start(0);
	OK(cuMemAlloc_v2(&at, MIB));
	OK(cuGraphCreate(&graph, 0));
	OK(cuStreamCreate(&stream, 0));
	for (int part = 0; part < 2; part++) {
		OK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
		OK(cuMemsetD8Async(at + (unsigned)part, 3, 1, stream));
		OK(cuStreamEndCapture(stream, &same));
		CHECK(same == graph);
	}
	CUgraphExec exec = instantiated(graph);
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(at)[0] == 3 && bytes(at)[1] == 3);
	OK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuGraphDestroy(graph)); // while it is captured
	ends_invalidated();
}

CASE(other_streams_join)
{
	CUstream side;
	CUevent fork, join;
	CUstreamCaptureStatus status;
	CUgraph graph;
	start(0);
	OK(cuStreamCreate(&side, 0));
	OK(cuEventCreate(&fork, 0));
	OK(cuEventCreate(&join, 0));
	begin(0, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemsetD8Async(at, 1, 4, stream));
	OK(cuEventRecord(fork, stream));
	GIVES(907, cuEventQuery(fork));
	ends_invalidated();
	for (int joined = 0; joined < 2; joined++) {
		begin(0, CU_STREAM_CAPTURE_MODE_RELAXED);
		OK(cuMemsetD8Async(at, 1, 4, stream));
		OK(cuEventRecord(fork, stream));
		OK(cuStreamWaitEvent(side, fork, 0));
		OK(cuStreamIsCapturing(side, &status));
		CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
		OK(cuMemsetD8Async(at, 2, 2, side));
		if (joined) {
			OK(cuEventRecord(join, side));
			OK(cuStreamWaitEvent(stream, join, 0));
		}
		GIVES(joined ? 0 : 904, cuStreamEndCapture(stream, &graph));
		OK(cuStreamIsCapturing(side, &status));
		CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
	}
	CUgraphExec exec = instantiated(graph);
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(*(unsigned *)at == 0x01010202);
	OK(cuGraphDestroy(graph));
	// Ending a capture where it did not begin; depending on work that is not captured.
	begin(0, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuEventRecord(fork, stream));
	OK(cuStreamWaitEvent(side, fork, 0));
	GIVES(903, cuStreamEndCapture(side, &graph));
	ends_invalidated();
	OK(cuMemsetD8Async(at, 2, 2, side));
	OK(cuEventRecord(join, side));
	FORBIDS(0, CU_STREAM_CAPTURE_MODE_RELAXED, 905, cuStreamWaitEvent(stream, join, 0));
}
