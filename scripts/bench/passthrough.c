// What a cudaMalloc and a cudaFree outside any region cost, in nanoseconds per call.
// Run with and without libtms.so in LD_PRELOAD; inturn.py does, and compares.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern int cudaMalloc(void **pointer, size_t size);
extern int cudaFree(void *pointer);
extern int cudaDeviceSynchronize(void);

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void check(int code, const char *what)
{
	if (code) {
		fprintf(stderr, "passthrough: %s: cudaError %d\n", what, code);
		exit(1);
	}
}

static double frees_of_null(int count)
{
	double begin = now();
	for (int i = 0; i < count; i++)
		check(cudaFree(NULL), "cudaFree");
	return (now() - begin) / count;
}

static double pairs(size_t size, int count)
{
	double begin = now();
	for (int i = 0; i < count; i++) {
		void *pointer;
		check(cudaMalloc(&pointer, size), "cudaMalloc");
		check(cudaFree(pointer), "cudaFree");
	}
	return (now() - begin) / count;
}

int main(void)
{
	void *anchor; // keeps the runtime's own 2 MiB block for small sizes alive
	check(cudaMalloc(&anchor, 512), "cudaMalloc");
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	frees_of_null(1000);
	pairs(512, 1000);
	pairs(2 << 20, 50);
	printf("%.2f cudaFree(NULL)\n", frees_of_null(2000000));
	printf("%.2f cudaMalloc+cudaFree 512 B\n", pairs(512, 50000));
	printf("%.2f cudaMalloc+cudaFree 2 MiB\n", pairs(2 << 20, 1500));
	check(cudaFree(anchor), "cudaFree");
	return 0;
}
