// Uses the shared CUDA runtime; with an argument it then stays until its standard input ends.
#include <stddef.h>
#include <stdio.h>

int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);

int main(int argc, char **argv)
{
	(void)argv;
	void *pointer = NULL;
	int failed = cudaMalloc(&pointer, 1 << 20) || cudaFree(pointer);
	if (argc > 1) {
		puts("up");
		fflush(stdout);
		getchar();
	}
	return failed;
}
