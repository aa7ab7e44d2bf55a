/* A library that is linked with one major of libcudart. SIZE: that major's cudaPointerAttributes. */
#include <stddef.h>
#include <string.h>

int cudaDeviceReset(void);
int cudaFree(void *);
int cudaGetLastError(void);
int cudaMalloc(void **, size_t);
int cudaPeekAtLastError(void);
int cudaPointerGetAttributes(void *, const void *);

/* Returns how many bytes behind the structure were written, or less than 0 for a failure. */
int overrun(void *pointer)
{
	struct {
		unsigned char attributes[SIZE], behind[128];
	} answer;
	int written = 0;
	memset(&answer, 0xab, sizeof answer);
	if (cudaPointerGetAttributes(answer.attributes, pointer) != 0 || answer.attributes[0] != 2)
		return -1;
	for (size_t i = 0; i < sizeof answer.behind; i++)
		written += answer.behind[i] != 0xab;
	return written;
}

int allocate(void **pointer, size_t size)
{
	int code = cudaMalloc(pointer, size);
	return code; /* no tail call: the address returned to is here */
}

int release(void *pointer)
{
	int code = cudaFree(pointer);
	return code;
}

int cudaLaunchKernel(void);

int launch(void)
{
	int code = cudaLaunchKernel();
	return code;
}

int reset(void)
{
	int code = cudaDeviceReset();
	return code;
}

int last(int peek)
{
	return peek ? cudaPeekAtLastError() : cudaGetLastError();
}
