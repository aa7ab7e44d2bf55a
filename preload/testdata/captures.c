/* While a stream is captured, pauses are refused and frees wait, exactly as long as the capture lasts, however it ends.
 * Called as: captures cuda|cu, with slowbegin.c behind libtms.so. */
#include "host.h"

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

/* While a stream is being captured allocation works, a free is put off to the end of the capture, and pause and resume
 * are refused; the capture survives all of it. */
static void memory_in_a_capture(void)
{
	size_t before = free_bytes();
	void *stream = new_stream(), *graph = NULL;
	void *old = kept_memory(2 * MIB, "graph", 5);
	EXPECT(cuda.begin(stream, 0), 0);
	void *fresh = pausable(2 * MIB, "graph", false);
	EXPECT(cudaMemsetAsync(fresh, 1, 2 * MIB, stream), 0);
	EXPECT(cudaFree(old), 0);
	EXPECT(cudaFree(old), 1);
	FAILS(tms_pause(NULL), 900, "captured");
	EXPECT(tms_resume(NULL), 900);
	EXPECT(sim_stat("handles"), 2);
	EXPECT(cuda.end(stream, &graph), 0);
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
}

static pthread_mutex_t pausing = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool done;

/* A capture begins while another thread resumes: the copies go on, and host memory is unpinned. */
static void *capture_again_and_again(void *stream)
{
	void *graph;
	while (!atomic_load(&done)) {
		EXPECT(pthread_mutex_lock(&pausing), 0);
		EXPECT(cuda.begin(stream, 0), 0);
		usleep(50);
		EXPECT(cuda.end(stream, &graph), 0);
		EXPECT(cudaGraphDestroy(graph), 0);
		EXPECT(pthread_mutex_unlock(&pausing), 0);
		usleep(50);
	}
	return NULL;
}

static void *free_in_thread(void *memory)
{
	EXPECT(cudaFree(memory), 0);
	return NULL;
}

/* A capture begins while another thread's free waits for the device. */
static void capture_beside_a_free(void)
{
	void *stream = new_stream(), *busy = new_stream(), *graph, *memory = pausable(2 * MIB, "freed", false);
	sem_t door;
	pthread_t thread;
	EXPECT(sem_init(&door, 0, 0), 0);
	EXPECT(cudaLaunchHostFunc(busy, wait_at, &door), 0);
	start(&thread, free_in_thread, memory);
	usleep(20000);
	EXPECT(cuda.begin(stream, 0), 0);
	EXPECT(sem_post(&door), 0);
	join(thread);
	EXPECT(cuda.end(stream, &graph), 0);
	EXPECT(cudaGraphDestroy(graph), 0);
}

static void captures_beside_resumes(void)
{
	void *kept = kept_memory(64 * MIB, "kept", 7);
	pthread_t thread;
	start(&thread, capture_again_and_again, new_stream());
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
	join(thread);
	CHECK(filled(kept, 64 * MIB, 7));
}

static void *to_be_freed;

static void free_on_another_thread(void)
{
	on_a_thread(free_in_thread, to_be_freed);
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
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cuda.end_own(NULL, &graph), NOT_CAPTURED);
	EXPECT(cuda.begin_own(NULL, GLOBAL), 0);
	EXPECT(cuda.end((void *)2, &graph), 0); /* the same stream by its other name */
	return unused;
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

/* Every way to begin a capture counts, and every way to end it. */
static void each_beginning(void)
{
	int (*oldest)(void *) = (int (*)(void *))look_up("cu", "StreamBeginCapture");
	int (*to_cig)(void *, void *) = (int (*)(void *, void *))look_up("cu", "StreamBeginCaptureToCig");
	int (*from_cig)(void *) = (int (*)(void *))look_up("cu", "StreamEndCaptureToCig");
	int (*again)(void *, int, void *, void *, void *) =
		(int (*)(void *, int, void *, void *, void *))look_up("cu", "StreamBeginRecaptureToGraph");
	void *stream = new_stream(), *graph = NULL;
	for (int way = 0; way < 3; way++) {
		void *memory = pausable(2 * MIB, "captured", false);
		long long handles = sim_stat("handles");
		EXPECT(way == 0 ? oldest(stream) : way == 1 ? to_cig(stream, &graph) : again(stream, 0, graph, NULL, NULL), 0);
		EXPECT(tms_pause(NULL), REFUSED);
		EXPECT(cudaFree(memory), 0);
		EXPECT(sim_stat("handles"), handles);
		if (way == 1)
			EXPECT(from_cig(stream), 0);
		else
			EXPECT(cuda.end(stream, &graph), 0);
		EXPECT(sim_stat("handles"), handles - 1);
		if (way == 0) {
			EXPECT(cudaGraphDestroy(graph), 0);
			EXPECT(cudaGraphCreate(&graph, 0), 0);
		}
	}
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	cuda = functions(argv[1]);
	other = functions(strcmp(argv[1], "cu") == 0 ? "cuda" : "cu");
	memory_in_a_capture();
	capture_beside_a_free();
	captures_beside_resumes();
	CHECK(pausable(2 * MIB, "kept", true)); /* gives a pause something to do */
	free_while_beginning();
	each_beginning();
	ends_that_fail();
	several_at_once();
	destroyed();
	context_destroyed();
	streams_of_threads();
	streams_of_threads_on_two_devices();
	reset();
	return 0;
}
