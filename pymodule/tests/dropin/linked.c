/* A program linked to libcudart, as no Python is: says whether its cudaMalloc in a region is ours. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
int cudaMemGetInfo(size_t *free, size_t *total);

static size_t unused(void)
{
	size_t free = 0, total = 0;
	if (cudaMemGetInfo(&free, &total))
		exit(3);
	return free;
}

int main(void)
{
	void (*set)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
	int (*pause)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "tms_pause");
	void *pointer;
	if (!set || !pause)
		return 2;
	set(1);
	if (cudaMalloc(&pointer, 8 << 20))
		return 4;
	size_t before = unused();
	if (pause(NULL))
		return 5;
	puts(unused() - before == 8 << 20 ? "pausable" : "not pausable");
	return cudaFree(pointer);
}
