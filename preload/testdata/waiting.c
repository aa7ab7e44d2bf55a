/* The library's waits, and the locks and memory that it holds during them. Called as: waiting PART */
#include "host.h"

static const char *what; /* the part */

/* A stream that waits for a host thread (a gate) holds up only threads that wait for that stream, because the library
 * holds no lock while it waits. */
static sem_t gate;

static _Atomic int paused;

static void *pause_it(void *unused)
{
	EXPECT(tms_pause("t"), 0);
	paused = 1;
	return unused;
}

/* Memory for which an allocation waits. */
static void comes(void)
{
	void *pointer = NULL;
	sem_post(&gate);
	EXPECT(cudaMalloc(&pointer, 700 * MIB), 0);
	EXPECT(cudaFree(pointer), 0);
}

static void gated(void)
{
	void *stream = NULL, *second = NULL, *pointer = NULL;
	EXPECT(sem_init(&gate, 0, 0), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamCreate(&second), 0);
	if (!strcmp(what, "allocation")) {
		/* The allocating thread itself opens the stream, so that memory freed there cannot come. */
		void *freed = pausable(700 * MIB, "t", false);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		EXPECT(cudaFreeAsync(freed, stream), 0);
		double begin = now(CLOCK_MONOTONIC);
		tms_set_interesting_region(true);
		EXPECT(cudaMalloc(&pointer, 700 * MIB), 2);
		CHECK(now(CLOCK_MONOTONIC) - begin < 60);
		comes();
	} else if (!strcmp(what, "captured")) {
		/* The allocating thread itself opens the stream, and a capture has put off frees that would wait for
		 * it. */
		void *freed = pausable(700 * MIB, "t", false), *paused_one = pausable(4 * MIB, "u", true), *graph = NULL;
		EXPECT(tms_pause("u"), 0);
		EXPECT(cudaStreamBeginCapture(second, 0), 0);
		EXPECT(cudaFree(freed), 0);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		double begin = now(CLOCK_MONOTONIC);
		EXPECT(cudaStreamEndCapture(second, &graph), 0);
		EXPECT(tms_resume("u"), 0);
		tms_set_interesting_region(true);
		EXPECT(cudaMalloc(&pointer, 700 * MIB), 2);
		CHECK(now(CLOCK_MONOTONIC) - begin < 60);
		CHECK(stats_say("the devices have not finished with it"));
		comes();
		EXPECT(cudaFree(paused_one), 0);
	} else if (!strcmp(what, "other stream")) {
		/* Memory that another stream frees is not held up. */
		void *held = pausable(400 * MIB, "t", false), *freed = pausable(400 * MIB, "t", false);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		EXPECT(cudaFreeAsync(held, stream), 0);
		EXPECT(cudaFreeAsync(freed, second), 0);
		pointer = pausable(500 * MIB, "u", false);
		sem_post(&gate);
	} else {
		/* A pause waits for the stream. The thread that will open it uses the library during the wait. */
		void *mine = pausable(4 * MIB, "t", true), *others = pausable(4 * MIB, "u", true);
		EXPECT(tms_pause("u"), 0);
		fill(mine, 4 * MIB, 1);
		EXPECT(cudaLaunchHostFunc(stream, wait_at, &gate), 0);
		pthread_t thread;
		start(&thread, pause_it, NULL);
		usleep(50000);
		EXPECT(cudaSetDevice(1), 0);
		EXPECT(cudaSetDevice(0), 0);
		EXPECT(tms_resume("u"), 0);
		pointer = pausable(3 * MIB, "t", true);
		EXPECT(tms_prepare("u", true), 0);
		EXPECT(tms_trim(), 0);
		EXPECT(cudaFreeAsync(others, second), 0);
		free(stats());
		CHECK(!paused);
		sem_post(&gate);
		join(thread);
		CHECK(paused);
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(mine, 4 * MIB, 1));
	}
}

/* When the call returns, a preparation in the background has its place in the order: a trim or a pause that follows
 * comes after it. */
static void preparing(void)
{
	void *memory = kept_memory(8 * MIB, "w", 1);
	PAUSE_AND_RESUME(NULL);
	for (int i = 0; i < 150; i++) {
		EXPECT(tms_prepare(i % 2 ? "w" : NULL, false), 0);
		EXPECT(tms_trim(), 0);
		EXPECT(sim_stat("registered_bytes"), 0);
	}
	EXPECT(tms_prepare("w", false), 0);
	EXPECT(tms_pause("w"), 0);
	EXPECT(tms_prepare("w", false), 0); /* nothing to do */
	EXPECT(tms_resume("w"), 0);
	CHECK(filled(memory, 8 * MIB, 1));
	EXPECT(tms_prepare("w", false), 0);
	EXPECT(cudaFree(memory), 0);
	EXPECT(tms_trim(), 0);
	EXPECT(sim_stat("registered_bytes"), 0);
	EXPECT(sim_stat("handles"), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	what = argv[1];
	CHECK(RUN_PART(what, {"allocation", gated}, {"other stream", gated}, {"pause", gated}, {"captured", gated},
		       {"preparing", preparing}));
	return 0;
}
