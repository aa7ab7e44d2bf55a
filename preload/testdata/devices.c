/* Two devices: a segment belongs to the device current at its cudaMalloc; pause and resume cover
 * both and leave the caller's device and context alone. */
#include "host.h"

int main(void)
{
	void *segment[2];
	size_t before[2];
	int (*current)(void **) = (int (*)(void **))simulator("cuCtxGetCurrent");
	for (int d = 0; d < 2; d++) {
		EXPECT(cudaSetDevice(d), 0);
		before[d] = free_bytes();
		segment[d] = pausable(4 * MIB, "both", true);
		fill(segment[d], 4 * MIB, (unsigned)d);
		EXPECT(before[d] - free_bytes(), 4 * MIB);
	}
	for (int here = 0; here < 2; here++) {
		int device = -1;
		void *context = NULL, *after = NULL;
		EXPECT(cudaSetDevice(here), 0);
		EXPECT(current(&context), 0);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(current(&after), 0);
		CHECK(context == after);
		EXPECT(cudaGetDevice(&device), 0);
		EXPECT(device, here);
		for (int d = 0; d < 2; d++) {
			EXPECT(cudaSetDevice(d), 0);
			EXPECT(free_bytes(), before[d]);
		}
		EXPECT(cudaSetDevice(here), 0);
		EXPECT(tms_resume("both"), 0);
		EXPECT(current(&after), 0);
		CHECK(context == after);
	}
	for (int d = 0; d < 2; d++)
		CHECK(filled(segment[d], 4 * MIB, (unsigned)d));
	/* Freed with the other device current. */
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaFree(segment[1]), 0);
	EXPECT(cudaSetDevice(1), 0);
	EXPECT(cudaFree(segment[0]), 0);
	EXPECT(free_bytes(), before[1]);
	return 0;
}
