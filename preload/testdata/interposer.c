/* Another library that interposes cudaMalloc and cudaFree, and counts the calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int interposed_mallocs, interposed_frees;

int cudaMalloc(void **pointer, size_t size)
{
	interposed_mallocs++;
	return ((int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc"))(pointer, size);
}

int cudaFree(void *pointer)
{
	interposed_frees++;
	return ((int (*)(void *))dlsym(RTLD_NEXT, "cudaFree"))(pointer);
}
