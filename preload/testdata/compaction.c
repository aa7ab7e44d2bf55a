/* After a pause, a program can allocate as much as before it. With a gate, slack is given back when memory runs out,
 * beside a thread that goes on working. Without a gate, a sixteenth of the device may be slack. Called as: compaction
 * with|without */
#include "host.h"

enum { COUNT = 40, EACH = 10, TOTAL = 512, LIVE = COUNT / 4 * EACH }; /* MiB */

static _Atomic bool stop;
static _Atomic long rounds;

/* Gives the device work all the time, on a segment that has freed neighbours. */
static void *work(void *memory)
{
	for (unsigned i = 1; !stop; i++, rounds++) {
		unsigned char read = 0;
		EXPECT(cudaMemset((char *)memory + MIB, (int)(i & 0xff), 4096), 0);
		EXPECT(cudaMemcpy(&read, (char *)memory + MIB + 4095, 1, 2), 0);
		EXPECT(read, i & 0xff);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	bool gate = argc > 1 && strcmp(argv[1], "with") == 0;
	void *all[COUNT], *big;
	pthread_t worker;
	for (int i = 0; i < COUNT; i++)
		all[i] = pausable(EACH * MIB, "t", true);
	EXPECT(tms_pause("t"), 0);
	EXPECT(tms_resume("t"), 0);
	for (int i = 0; i < COUNT; i++) {
		if (i % 4 == 0)
			fill(all[i], EACH * MIB / 2, (unsigned)i);
		else
			EXPECT(cudaFree(all[i]), 0); /* as PyTorch gives back what it only caches */
	}
	start(&worker, work, (char *)all[4] + EACH * MIB / 2);
	while (rounds == 0)
		usleep(100);
	tms_set_interesting_region(true);
	tms_set_current_tag("u");
	EXPECT(cudaMalloc(&big, (TOTAL - LIVE - (gate ? 0 : TOTAL / 16)) * MIB), 0);
	if (!gate)
		EXPECT(cudaMalloc(&big, (TOTAL / 16) * MIB), 2);
	stop = true;
	join(worker);
	for (int i = 0; i < COUNT; i += 4)
		CHECK(filled(all[i], EACH * MIB / 2, (unsigned)i));
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	for (int i = 0; i < COUNT; i += 4)
		CHECK(filled(all[i], EACH * MIB / 2, (unsigned)i));
	return 0;
}
