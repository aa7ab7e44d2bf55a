/* A libcudart whose functions do nothing, so that what remains is the price of being interposed. */
#include <stddef.h>

int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
int cudaDeviceSynchronize(void);
int cudaRuntimeGetVersion(int *version);

int cudaMalloc(void **pointer, size_t size)
{
	static char memory[1];
	(void)size;
	*pointer = memory;
	return 0;
}

int cudaFree(void *pointer)
{
	(void)pointer;
	return 0;
}

int cudaDeviceSynchronize(void)
{
	return 0;
}

/* By this function libtms.so knows a libcudart. */
int cudaRuntimeGetVersion(int *version)
{
	*version = 13000;
	return 0;
}
