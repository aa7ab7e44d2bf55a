// Another library that interposes cudaMalloc, or an older or newer libcudart, depending on the name that it is given.
#include <stddef.h>

int cudaMalloc(void **pointer, size_t size)
{
	*pointer = NULL;
	return size != 0;
}

int cudaFree(void *pointer)
{
	return pointer != NULL;
}
