// A libtms.so that needs that C library.
#include <stddef.h>

int from_the_future(void);

int cudaMalloc(void **pointer, size_t size)
{
	*pointer = NULL;
	return from_the_future() + (size != 0);
}
