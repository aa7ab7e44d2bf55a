/* A resume that waits for memory of another process. Called with TMS_RESUME_WAIT=10m; prints the other's number. */
#include "host.h"

#include <math.h>

enum { KEPT = 64 << 20, HELD = 90 << 20 }; /* of 128 MiB */

static int ask[2], answer[2];

/* The other process: h takes memory, f frees it. */
static int hold(void)
{
	void *held = NULL;
	for (char word; read(ask[0], &word, 1) == 1;) {
		EXPECT(word == 'h' ? cudaMalloc(&held, HELD) : cudaFree(held), 0);
		CHECK(write(answer[1], &word, 1) == 1);
	}
	return 0;
}

static void other(char word)
{
	CHECK(write(ask[1], &word, 1) == 1 && read(answer[0], &word, 1) == 1);
}

static _Atomic int resumed = -1;

static void *resume_it(void *unused)
{
	resumed = tms_resume("w");
	return unused;
}

static uint64_t looks(void)
{
	return sim_stat("calls:cuMemGetInfo_v2");
}

/* Returns when the wait has looked some more times whether there is memory. */
static void waits(void)
{
	for (uint64_t before = looks(); looks() < before + 4;)
		usleep(500);
	EXPECT(resumed, -1);
}

int main(void)
{
	CHECK(pipe(ask) == 0 && pipe(answer) == 0);
	pid_t holder = fork();
	if (holder == 0) {
		close(ask[1]);
		return hold();
	}
	printf("%d\n", holder);
	fflush(stdout);
	EXPECT(tms_get_resume_wait(), 600);
	void *kept = kept_memory(KEPT, "w", 1), *small = pausable(8 * MIB, "u", true);
	EXPECT(tms_pause(NULL), 0);
	other('h');
	pthread_t thread;
	start(&thread, resume_it, NULL);
	AWAIT(looks() > 8);
	waits();
	/* It takes nothing that would not suffice, and holds no lock. */
	uint64_t made = sim_stat("calls:cuMemCreate"), handles = sim_stat("handles");
	waits();
	EXPECT(sim_stat("calls:cuMemCreate"), made);
	EXPECT(sim_stat("handles"), handles);
	free(stats());
	EXPECT(tms_resume("u"), 0);
	PAUSE_AND_RESUME("u");
	EXPECT(tms_pause("w"), 0);
	EXPECT(tms_resume_within("w", 0), 2);
	EXPECT(tms_prepare("u", true), 0);
	EXPECT(cudaFree(small), 0);
	EXPECT(tms_trim(), 0);
	pid_t child = fork();
	if (child == 0)
		_exit(7);
	EXPECT(code_of(child), 7);
	waits();
	other('f');
	join(thread);
	EXPECT(resumed, 0);
	CHECK(filled(kept, KEPT, 1));

	/* No process gives memory back in time. */
	EXPECT(tms_pause("w"), 0);
	other('h');
	EXPECT(tms_set_resume_wait(0.05), 0);
	FAILS(tms_set_resume_wait(-1), 1, "-1 is no number of seconds to wait");
	FAILS(tms_set_resume_wait(NAN), 1, "is no number of seconds to wait");
	double begin = now(CLOCK_MONOTONIC);
	FAILS(tms_resume("w"), 2, "64.00 MiB are needed");
	CHECK(now(CLOCK_MONOTONIC) - begin >= 0.05);
	EXPECT(tms_set_resume_wait(0), 0);
	FAILS(tms_resume(NULL), 2, "64.00 MiB are needed");
	other('f');
	EXPECT(tms_resume("w"), 0);
	CHECK(filled(kept, KEPT, 1));

	/* The process ends, or another thread resumes, while one waits. */
	EXPECT(tms_pause("w"), 0);
	other('h');
	EXPECT(tms_set_resume_wait(INFINITY), 0);
	resumed = -1;
	start(&thread, resume_it, NULL);
	waits();
	other('f');
	EXPECT(tms_resume_within("w", 600), 0);
	join(thread);
	EXPECT(resumed, 0);
	EXPECT(tms_pause("w"), 0);
	other('h');
	resumed = -1;
	start(&thread, resume_it, NULL);
	waits();
	return 0;
}
