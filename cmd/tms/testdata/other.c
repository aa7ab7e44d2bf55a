// Another library that stands in front of cudaMalloc, or an older or newer libcudart: it depends on
// the name it is given.
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
