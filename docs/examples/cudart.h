/* What the examples call in CUDA's runtime; a program with the CUDA toolkit includes <cuda_runtime_api.h>. */
#include <stddef.h>

int cudaMalloc(void **address, size_t size);
int cudaFree(void *address);
int cudaMemset(void *address, int value, size_t size);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);
int cudaMemGetInfo(size_t *free, size_t *total);

#define DEVICE_TO_HOST 2
