/* Another library in front of CUDA, which lets time pass between the driver's begin of a capture and the return to its
 * caller. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void (*after_begin)(void);

#define BEGIN(name)                                                                                \
	int name(void *stream, int mode)                                                           \
	{                                                                                          \
		int code = ((int (*)(void *, int))dlsym(RTLD_NEXT, #name))(stream, mode);          \
		if (after_begin)                                                                   \
			after_begin();                                                             \
		return code;                                                                       \
	}

BEGIN(cudaStreamBeginCapture)
BEGIN(cuStreamBeginCapture_v2)
