/* A program that takes memory in parts, then works in one after another, with a gap after each step, and looks at all of
 * it in the end. Arguments: MiB, steps, milliseconds of each gap. */
#include "driver.h"
#include "steps.h"

#include <stdbool.h>
#include <unistd.h>

int cuDevicePrimaryCtxRetain(context *made, int device);

enum { PARTS = 4, BLOCK = 4 << 20 };

static bool all_are(pointer memory, size_t count, unsigned value, stream in)
{
	static unsigned block[BLOCK];
	for (size_t at = 0; at < count; at += BLOCK) {
		size_t some = count - at < BLOCK ? count - at : BLOCK, same = 0;
		CHECK(cuMemcpyDtoHAsync_v2(block, memory + at * sizeof *block, some * sizeof *block, in));
		CHECK(cuStreamSynchronize(in));
		for (size_t i = 0; i < some; i++)
			same += block[i] == value;
		if (same != some)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	CHECK(argc != 4);
	const int steps = atoi(argv[2]), gap = atoi(argv[3]);
	const size_t half = ((size_t)atoi(argv[1]) << 20) / PARTS / 2 / sizeof(unsigned);
	pointer part[PARTS];
	unsigned earlier[PARTS], last[PARTS]; /* what the halves of each part are full of */
	context all;
	stream in;
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&all, 0));
	CHECK(cuCtxSetCurrent(all));
	CHECK(cuStreamCreate(&in, NON_BLOCKING));
	for (unsigned i = 0; i < PARTS; i++) {
		CHECK(cuMemAlloc_v2(&part[i], 2 * half * sizeof *last));
		CHECK(cuMemsetD32Async(part[i], earlier[i] = last[i] = ~i, 2 * half, in));
	}
	CHECK(cuStreamSynchronize(in));
	ready(PARTS * 2 * half * sizeof *last);
	for (int number = 0; number < steps; number++) {
		const int i = number % PARTS;
		unsigned found;
		CHECK(cuMemcpyDtoDAsync_v2(part[i], part[i] + half * sizeof found, half * sizeof found, in));
		CHECK(cuMemsetD32Async(part[i] + half * sizeof found, (unsigned)number, half, in));
		CHECK(cuMemcpyDtoHAsync_v2(&found, part[i] + (size_t)number % half * sizeof found, sizeof found, in));
		CHECK(cuStreamSynchronize(in));
		CHECK(found != last[i]);
		earlier[i] = last[i], last[i] = (unsigned)number;
		if (gap)
			usleep((useconds_t)gap * 1000);
	}
	for (int i = 0; i < PARTS; i++)
		CHECK(!all_are(part[i], half, earlier[i], in) ||
		      !all_are(part[i] + half * sizeof *last, half, last[i], in));
	return end(steps);
}
