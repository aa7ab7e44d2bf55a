/* A library that uses CUDA, and is closed afterwards with everything that it needs. */
#include <stddef.h>
#include <string.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);

int use(int byte)
{
	char there[4096], back[4096];
	void *space;
	memset(there, byte, sizeof there);
	int code = cudaMalloc(&space, sizeof there);
	if (code || (code = cudaMemcpy(space, there, sizeof there, 1)) || (code = cudaMemcpy(back, space, sizeof back, 2)))
		return code;
	return memcmp(there, back, sizeof back) ? -1 : cudaFree(space);
}
