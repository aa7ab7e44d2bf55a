// A CUDA runtime inside the program, as nvcc links it by default: how much of it is visible depends on how the file was
// linked and stripped.
#include <stddef.h>
#include <stdlib.h>

#ifndef VISIBLE
#define VISIBLE __attribute__((visibility("hidden")))
#endif

#ifdef SEGMENT
__attribute__((section(".nvFatBinSegment"), used)) static int fat_binary[4] = {1};
#endif

#ifdef TEXTS
const char *volatile texts[] = {"/cudart.shm.%x.%x.%llx",
				"CUDA driver version is insufficient for CUDA runtime version"};
#endif

VISIBLE __attribute__((noinline)) int cudaMalloc(void **pointer, size_t size)
{
	*pointer = malloc(size);
	return *pointer == NULL;
}

int main(void)
{
	void *pointer;
	return cudaMalloc(&pointer, 16);
}
