/* A program that learns of failures by cudaGetLastError: each function that allocates or frees leaves its code there, in
 * a region as outside, and a call that succeeds leaves nothing. Compiled with the runtime's sources for a program whose
 * libcudart is static, which keeps the last error itself. */
#include "host.h"

int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaMallocFromPoolAsync(void **, size_t, void *, void *);
int cudaDeviceGetDefaultMemPool(void **, int);

enum { TOO_LITTLE_MEMORY = 2, INVALID = 1 };

#define LEAVES(call, code)                                                                         \
	do {                                                                                       \
		EXPECT(call, code);                                                                \
		EXPECT(cudaPeekAtLastError(), code);                                               \
		EXPECT(cudaGetLastError(), code);                                                  \
		EXPECT(cudaGetLastError(), 0);                                                     \
	} while (0)

static void fails(void)
{
	const size_t too_much = (size_t)1 << 45;
	void *memory = NULL, *pool = NULL;
	size_t pitch;
	LEAVES(cudaMalloc(&memory, too_much), TOO_LITTLE_MEMORY);
	LEAVES(cudaMallocPitch(&memory, &pitch, too_much / 4, 4), TOO_LITTLE_MEMORY);
	LEAVES(cudaMallocAsync(&memory, too_much, NULL), TOO_LITTLE_MEMORY);
	EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0), 0);
	LEAVES(cudaMallocFromPoolAsync(&memory, too_much, pool, NULL), TOO_LITTLE_MEMORY);
	EXPECT(cudaMalloc(&memory, MIB), 0);
	LEAVES(cudaFree((char *)memory + 512), INVALID);
	EXPECT(cudaFree(memory), 0);
	LEAVES(cudaFree(memory), INVALID);
	EXPECT(cudaMalloc(&memory, too_much), TOO_LITTLE_MEMORY);
	LEAVES(cudaFree((char *)1), INVALID); /* the later failure */
	EXPECT(cudaMallocAsync(&memory, MIB, NULL), 0);
	EXPECT(cudaFreeAsync(memory, NULL), 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	EXPECT(cudaGetLastError(), 0);
}

int main(void)
{
	EXPECT(cudaFree(NULL), 0);
	fails();
	IN_REGION(fails());
	return 0;
}
