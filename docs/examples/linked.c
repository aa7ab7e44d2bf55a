/* A program that is linked to libtms.so and needs no LD_PRELOAD. -ltms comes before -lcudart. libtms.so has all CUDA
 * functions that the program calls, so a linker with --as-needed, some distributions' default, would omit libcudart;
 * `tms --libs` ends with what prevents that:
 *
 *     gcc linked.c $(tms --cflags --libs) -L/usr/local/cuda/lib64 -lcudart
 *
 * It prints how much memory a pause has freed, and that the contents came back. */
#include <stdio.h>
#include <stdlib.h>

#include "cudart.h"
#include "tms.h"

#define SIZE ((size_t)64 << 20)

static void check(int code)
{
	if (code) {
		fprintf(stderr, "cudaError %d: %s\n", code, tms_last_error());
		exit(1);
	}
}

int main(void)
{
	void *weights;
	unsigned char last;

	tms_set_current_tag("weights");
	tms_set_backup("host");
	tms_set_interesting_region(true); /* from here on this thread's allocations are pausable */
	check(cudaMalloc(&weights, SIZE));
	tms_set_interesting_region(false);

	check(cudaMemset(weights, 42, SIZE));
	check(tms_pause("weights"));
	printf("%llu MiB are free for others\n", (unsigned long long)tms_last_bytes() >> 20);
	check(tms_resume("weights"));
	check(cudaMemcpy(&last, (char *)weights + SIZE - 1, 1, DEVICE_TO_HOST));
	printf("the last byte is %d\n", last);
	check(cudaFree(weights));
	return 0;
}
