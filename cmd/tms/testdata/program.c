// A program that USES the CUDA runtime, loads libraries LATE, or does nothing. With an argument it stays until its
// standard input ends.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);

int main(int argc, char **argv)
{
	int failed = 0;
	(void)argv;
#ifdef USES
	void *pointer = NULL;
	failed = cudaMalloc(&pointer, 1 << 20) || cudaFree(pointer);
#elif defined LATE
	failed = argc > 1 && !dlopen(argv[1], RTLD_NOW);
#endif
	if (argc > 1) {
		puts("up");
		fflush(stdout);
		getchar();
	}
	return failed;
}
