/* Gated pauses come at any moment, beside threads that give the device all kinds of work and know of no pause: each
 * launch must count once, and none may meet paused memory. It also runs on a GPU. arguments: pauses, seed */
#include "host.h"

typedef uintptr_t address;
int cuMemcpyDtoDAsync_v2(address, address, size_t, void *);
int cuMemcpyHtoDAsync_v2(address, const void *, size_t, void *);

enum { SUBMITTERS = 16, WORDS = 4096, ROUNDS = 6, GRAPH = 3, RELAXED = 2, CAPTURING = 900 };

static void *add;
static _Atomic bool over;
static _Atomic unsigned long rounds, launches, callbacks, threads_made, cancelled;

static uintptr_t words_of(const char *tag, size_t count)
{
	uintptr_t memory = 0;
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(true);
	tms_set_current_tag(tag);
	EXPECT(cuMemAlloc_v2(&memory, count * 4), 0);
	return memory;
}

static uintptr_t words(const char *tag)
{
	uintptr_t memory = words_of(tag, WORDS);
	EXPECT(cuMemsetD32_v2(memory, 0, WORDS), 0);
	return memory;
}

static void launch(uintptr_t memory, void *stream, unsigned number)
{
	uint64_t count = WORDS;
	void *parameters[] = {&memory, &count, &number};
	EXPECT(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), 0);
	launches++;
}

static void all_are(uintptr_t memory, void *stream, unsigned expected)
{
	static __thread unsigned host[WORDS];
	EXPECT(cuStreamSynchronize(stream), 0);
	EXPECT(cuMemcpyDtoH_v2(host, memory, sizeof host), 0);
	for (int i = 0; i < WORDS; i++)
		EXPECT(host[i], expected);
}

static void count_callback(void *unused)
{
	(void)unused;
	callbacks++;
}

static unsigned kernel_round(uintptr_t memory, void *stream, struct random *r, unsigned sum)
{
	for (int i = 0; i < ROUNDS; i++) {
		unsigned number = draw(r, 100);
		launch(memory, stream, number);
		sum += number;
	}
	EXPECT(cuLaunchHostFunc(stream, count_callback, NULL), 0);
	return sum;
}

static unsigned copy_round(uintptr_t memory, uintptr_t other, void *stream, struct random *r, unsigned sum)
{
	static __thread unsigned host[WORDS];
	unsigned number = draw(r, 1000);
	(void)sum;
	for (int i = 0; i < WORDS; i++)
		host[i] = number;
	EXPECT(cuMemcpyHtoDAsync_v2(other, host, sizeof host, stream), 0);
	EXPECT(cuMemcpyDtoDAsync_v2(memory, other, sizeof host, stream), 0);
	EXPECT(cuMemsetD32Async(other, number + 1, WORDS, stream), 0);
	launch(other, stream, 1);
	all_are(other, stream, number + 2);
	return number;
}

static unsigned graph_round(uintptr_t memory, void *stream, struct random *r, unsigned sum)
{
	void *graph = NULL, *exec = NULL;
	unsigned number = draw(r, 100);
	EXPECT(cuStreamBeginCapture_v2(stream, RELAXED), 0);
	launch(memory, stream, number);
	launch(memory, stream, 1);
	EXPECT(cuStreamEndCapture(stream, &graph), 0);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
	for (int i = 0; i < GRAPH; i++)
		EXPECT(cuGraphLaunch(exec, stream), 0);
	EXPECT(cuStreamSynchronize(stream), 0);
	EXPECT(cuGraphExecDestroy(exec), 0);
	EXPECT(cuGraphDestroy(graph), 0);
	return sum + GRAPH * (number + 1);
}

/* Its memory outlives a parent's threads, because a free that does not yet see another thread's capture breaks it. */
struct life {
	int kind;
	struct random random;
	uintptr_t memory, other;
	unsigned sum;
};

/* One thread's life: a few rounds of its kind. */
static void live(struct life *life)
{
	int kind = life->kind;
	struct random *r = &life->random;
	uintptr_t memory = life->memory, other = life->other;
	void *stream = NULL, *context = NULL;
	if (kind == 3)
		EXPECT(cuCtxCreate_v2(&context, 0, 0), 0);
	EXPECT(cuStreamCreate(&stream, kind == 2 || draw(r, 2)), 0); /* a capture forbids waits for blocking streams */
	unsigned sum = life->sum, length = 5 + draw(r, 20);
	for (unsigned i = 0; i < length && !over; i++) {
		if (kind == 1)
			sum = copy_round(memory, other, stream, r, sum);
		else if (kind == 2)
			sum = graph_round(memory, stream, r, sum);
		else
			sum = kernel_round(memory, stream, r, sum);
		all_are(memory, stream, sum);
		rounds++;
	}
	life->sum = sum;
	EXPECT(cuStreamDestroy_v2(stream), 0);
	if (context)
		EXPECT(cuCtxDestroy_v2(context), 0);
}

static void *be_submitter(void *argument)
{
	struct life *life = argument;
	if (life->kind != 3)
		EXPECT(cudaFree(NULL), 0);
	live(life);
	return NULL;
}

/* A cancelled thread has no memory of its own, because no thread would free it. */
static uintptr_t common;
static void *common_stream;

static void *be_cancelled(void *unused)
{
	(void)unused;
	EXPECT(cudaFree(NULL), 0);
	for (;;) {
		launch(common, common_stream, 0);
		pthread_testcancel();
	}
}

/* Makes one thread after another. */
static void *be_parent(void *argument)
{
	struct life *life = argument;
	EXPECT(cudaFree(NULL), 0);
	while (!over) {
		pthread_t thread;
		threads_made++;
		if (life->kind == 4) {
			start(&thread, be_cancelled, NULL);
			usleep(draw(&life->random, 3000));
			EXPECT(pthread_cancel(thread), 0);
			cancelled++;
		} else {
			start(&thread, be_submitter, life);
		}
		join(thread);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static const char *const tags[] = {NULL, "a", "b"};
	int pauses = argc > 1 ? atoi(argv[1]) : 300;
	struct random r = {argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 88172645463325252u};
	void *library;
	EXPECT(cudaFree(NULL), 0);
	EXPECT(cuLibraryLoadData(&library, ADD_KERNEL, NULL, NULL, 0, NULL, NULL, 0), 0);
	EXPECT(cuLibraryGetKernel(&add, library, "cudasim_add"), 0);
	EXPECT(cuStreamCreate(&common_stream, 0), 0);
	common = words("b");
	static struct life lives[SUBMITTERS];
	pthread_t parents[SUBMITTERS];
	for (int i = 0; i < SUBMITTERS; i++) {
		lives[i] = (struct life){i % 5, {draw(&r, 1u << 30) | 1}, words(draw(&r, 2) ? "a" : "b"), words("a"), 0};
		start(&parents[i], be_parent, &lives[i]);
	}
	double longest = 0;
	uintptr_t kept = 0;
	for (int i = 0; i < pauses; i++) {
		const char *tag = tags[draw(&r, 3)];
		double begin = now(CLOCK_MONOTONIC);
		EXPECT(tms_pause_gated(tag, 60), 0);
		double took = now(CLOCK_MONOTONIC) - begin;
		longest = took > longest ? took : longest;
		if (draw(&r, 4) == 0)
			EXPECT(tms_pause_gated(NULL, 60), 0);
		unsigned long before = launches;
		uintptr_t fresh = words_of("c", 1 + draw(&r, 100000)), old = fresh;
		if (draw(&r, 2)) {
			old = kept;
			kept = fresh;
		}
		if (old)
			EXPECT(cuMemFree_v2(old), 0);
		usleep(draw(&r, 500));
		/* Each submitter may still have counted the launch that it was in. */
		CHECK(launches - before <= SUBMITTERS);
		if (draw(&r, 2))
			EXPECT(tms_resume("a"), 0);
		while ((before = (unsigned long)tms_resume(NULL)) == CAPTURING) /* "a" was all, so the gate is open */
			;
		EXPECT(before, 0);
		usleep(draw(&r, 1000));
	}
	over = true;
	join_all(parents, SUBMITTERS);
	all_are(common, common_stream, 0);
	printf("%lu rounds, %lu launches, %lu callbacks, %lu threads, %lu cancelled; longest pause %.1f ms\n", rounds,
	       launches, callbacks, threads_made, cancelled, longest * 1e3);
	CHECK(rounds > 0 && callbacks > 0 && cancelled > 0);
	return 0;
}
