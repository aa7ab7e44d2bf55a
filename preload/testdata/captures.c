/* Streams that are being captured: whatever becomes of a capture, pauses are refused and frees wait exactly as long as
 * the capture lasts. Called as: captures cuda|cu, with slowbegin.c behind libtms.so. */
#include "host.h"

int cudaDeviceReset(void);
int cudaEventCreate(void **);
int cudaEventRecord(void *, void *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaGraphCreate(void **, unsigned);

enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { INVALIDATED = 901, UNMATCHED = 903, WRONG_THREAD = 908, NOT_CAPTURED = 401, REFUSED = 900 };

/* One API's functions, and the other's, for captures that begin through one and end through the other. */
static struct api {
	int (*begin)(void *, int), (*begin_own)(void *, int);
	int (*begin_to_graph)(void *, void *, const void *, const void *, size_t, int);
	int (*end)(void *, void **), (*end_own)(void *, void **);
	int (*destroy)(void *);
} cuda, other;

static void *look_up(const char *api, const char *name)
{
	char full[64];
	snprintf(full, sizeof full, "%s%s", api, name);
	void *found = dlsym(RTLD_DEFAULT, full);
	return found ? found : simulator(full); /* not interposed */
}

static struct api functions(const char *api)
{
	bool driver = strcmp(api, "cu") == 0;
	return (struct api){
		look_up(api, driver ? "StreamBeginCapture_v2" : "StreamBeginCapture"),
		look_up(api, driver ? "StreamBeginCapture_v2_ptsz" : "StreamBeginCapture_ptsz"),
		look_up(api, "StreamBeginCaptureToGraph"),
		look_up(api, "StreamEndCapture"),
		look_up(api, "StreamEndCapture_ptsz"),
		look_up(api, driver ? "StreamDestroy_v2" : "StreamDestroy"),
	};
}

static void *new_stream(void)
{
	void *stream = NULL;
	EXPECT(cudaStreamCreate(&stream), 0);
	return stream;
}

static void *ended(void *stream)
{
	void *graph = NULL;
	EXPECT(cuda.end(stream, &graph), 0);
	CHECK(graph);
	return graph;
}

static void on_a_thread(void *(*function)(void *), void *argument)
{
	pthread_t thread;
	EXPECT(pthread_create(&thread, NULL, function, argument), 0);
	EXPECT(pthread_join(thread, NULL), 0);
}

static void *to_be_freed;

static void *free_it(void *unused)
{
	(void)unused;
	EXPECT(cudaFree(to_be_freed), 0);
	return NULL;
}

static void free_on_another_thread(void)
{
	on_a_thread(free_it, NULL);
}

static void free_while_beginning(void)
{
	void (**after_begin)(void) = dlsym(RTLD_DEFAULT, "after_begin");
	CHECK(after_begin);
	void *stream = new_stream();
	uint64_t handles = sim_stat("handles");
	to_be_freed = pausable(2 * MIB, "beginning", false);
	*after_begin = free_on_another_thread;
	EXPECT(cuda.begin(stream, GLOBAL), 0);
	*after_begin = NULL;
	EXPECT(sim_stat("handles"), handles + 1);
	ended(stream);
	EXPECT(sim_stat("handles"), handles);

	/* The begin fails after all: the free has waited in vain, and is made. */
	to_be_freed = pausable(2 * MIB, "beginning", false);
	*after_begin = free_on_another_thread;
	EXPECT(cuda.begin(stream, 77), 1);
	*after_begin = NULL;
	EXPECT(sim_stat("handles"), handles);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(cuda.destroy(stream), 0);
}

static void *end_here(void *stream)
{
	void *graph = NULL;
	EXPECT(cuda.end(stream, &graph), WRONG_THREAD);
	return NULL;
}

static void ends_that_fail(void)
{
	void *captured = new_stream(), *idle = new_stream(), *graph = NULL;
	EXPECT(cuda.begin(captured, GLOBAL), 0);
	EXPECT(cuda.end(idle, &graph), NOT_CAPTURED);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cuda.begin(captured, GLOBAL), NOT_CAPTURED); /* it already is captured: the same code */
	EXPECT(tms_pause(NULL), REFUSED);
	on_a_thread(end_here, captured);
	EXPECT(tms_pause(NULL), REFUSED);
	ended(captured);
	EXPECT(cuda.end(captured, &graph), NOT_CAPTURED);
	EXPECT(tms_pause(NULL), 0);

	/* A broken capture lasts until its end, which reports it. */
	EXPECT(cuda.begin(captured, GLOBAL), 0);
	EXPECT(cudaStreamSynchronize(captured), REFUSED);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cuda.end(captured, &graph), INVALIDATED);
	EXPECT(tms_pause(NULL), 0);

	/* A stream that has joined the capture cannot end it. */
	void *event = NULL;
	EXPECT(cudaEventCreate(&event), 0);
	EXPECT(cuda.begin(captured, GLOBAL), 0);
	EXPECT(cudaEventRecord(event, captured), 0);
	EXPECT(cudaStreamWaitEvent(idle, event, 0), 0);
	EXPECT(cuda.end(idle, &graph), UNMATCHED);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cuda.end(captured, &graph), INVALIDATED);
	EXPECT(tms_pause(NULL), 0);
}

static void several_at_once(void)
{
	void *stream[20], *into = NULL, *graph = NULL;
	for (int i = 0; i < 20; i++) {
		stream[i] = new_stream();
		EXPECT(cudaGraphCreate(&into, 0), 0);
		EXPECT(i % 2 ? cuda.begin(stream[i], RELAXED)
			     : cuda.begin_to_graph(stream[i], into, NULL, NULL, 0, RELAXED), 0);
	}
	for (int i = 0; i < 20; i++) {
		EXPECT(tms_pause(NULL), REFUSED);
		EXPECT((i % 3 ? cuda : other).end(stream[i], &graph), 0);
	}
	EXPECT(tms_pause(NULL), 0);
	for (int i = 0; i < 20; i++)
		EXPECT(cuda.destroy(stream[i]), 0);
}

static void destroyed(void)
{
	void *stream = new_stream(), *left = new_stream(), *graph = NULL;
	uint64_t handles = sim_stat("handles");
	to_be_freed = pausable(2 * MIB, "destroyed", false);
	EXPECT(cuda.begin(stream, GLOBAL), 0);
	EXPECT(cuda.begin(left, GLOBAL), 0);
	EXPECT(cudaFree(to_be_freed), 0);
	EXPECT(cuda.destroy(stream), 0);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cuda.destroy((void *)0x1234), 400);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(sim_stat("handles"), handles + 1);
	EXPECT(cuda.destroy(left), 0);
	EXPECT(sim_stat("handles"), handles);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(cuda.end(left, &graph), 400);
}

static void *end_own(void *unused)
{
	void *graph = NULL;
	(void)unused;
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cuda.end_own(NULL, &graph), NOT_CAPTURED);
	EXPECT(cuda.begin_own(NULL, GLOBAL), 0);
	EXPECT(cuda.end((void *)2, &graph), 0); /* the same stream by its other name */
	return NULL;
}

static void streams_of_threads(void)
{
	void *graph = NULL;
	EXPECT(cudaDeviceSynchronize(), 0);
	EXPECT(cuda.begin_own(NULL, GLOBAL), 0);
	on_a_thread(end_own, NULL);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cuda.end_own(NULL, &graph), 0);
	EXPECT(tms_pause(NULL), 0);
}

/* A thread has a default stream on each device. */
static void streams_of_threads_on_two_devices(void)
{
	void *graph = NULL;
	for (int device = 0; device < 2; device++) {
		EXPECT(cudaSetDevice(device), 0);
		EXPECT(cudaDeviceSynchronize(), 0);
	}
	for (int device = 0; device < 2; device++) {
		EXPECT(cudaSetDevice(device), 0);
		EXPECT(cuda.begin_own(NULL, RELAXED), 0);
	}
	EXPECT(cuda.end_own(NULL, &graph), 0);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cuda.end_own(NULL, &graph), 0);
	EXPECT(tms_pause(NULL), 0);
}

static void reset(void)
{
	void *stream = new_stream(), *elsewhere = NULL;
	EXPECT(cuda.begin(stream, RELAXED), 0);
	EXPECT(cudaSetDevice(1), 0);
	elsewhere = new_stream();
	EXPECT(cuda.begin(elsewhere, RELAXED), 0);
	EXPECT(cudaDeviceReset(), 0);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaDeviceReset(), 0);
	EXPECT(tms_pause(NULL), 0);
}

/* A context of the program's own ends with its captures. */
static void context_destroyed(void)
{
	void *context = NULL;
	int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))look_up("cu", "CtxCreate_v2");
	int (*destroy)(void *) = (int (*)(void *))look_up("cu", "CtxDestroy_v2");
	EXPECT(create(&context, 0, 0), 0);
	EXPECT(cuda.begin(new_stream(), RELAXED), 0);
	EXPECT(tms_pause(NULL), REFUSED);
	EXPECT(destroy(context), 0);
	EXPECT(tms_pause(NULL), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	cuda = functions(argv[1]);
	other = functions(strcmp(argv[1], "cu") == 0 ? "cuda" : "cu");
	CHECK(pausable(2 * MIB, "kept", true)); /* gives a pause something to do */
	free_while_beginning();
	ends_that_fail();
	several_at_once();
	destroyed();
	context_destroyed();
	streams_of_threads();
	streams_of_threads_on_two_devices();
	reset();
	return 0;
}
