/* A library that allocates for itself, built as libkeeper.so.1. */
#include <stddef.h>

int cudaMalloc(void **, size_t);

int keeper_malloc(void **pointer, size_t size)
{
	volatile int code = cudaMalloc(pointer, size); /* no tail call: the address returned to is here */
	return code;
}
