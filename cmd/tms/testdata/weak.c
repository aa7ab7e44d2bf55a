// Uses the CUDA runtime if there is one.
#include <stddef.h>

__attribute__((weak)) int cudaMalloc(void **pointer, size_t size);

int main(void)
{
	void *pointer = NULL;
	return cudaMalloc ? cudaMalloc(&pointer, 1 << 20) : 0;
}
