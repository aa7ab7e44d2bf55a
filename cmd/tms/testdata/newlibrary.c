// A libtms.so that needs the C library of newlibc.c.
#include <stddef.h>

int from_the_future(void);

int cudaMalloc(void **pointer, size_t size)
{
	*pointer = NULL;
	return from_the_future() + (size != 0);
}
