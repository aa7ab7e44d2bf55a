// A program that USES the CUDA runtime, or does so if there is one (WEAK), loads libraries LATE, has used up all but
// some two hundred of its MAPPINGS, or does nothing. With an argument it stays until its standard input ends.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>

#ifdef WEAK
#pragma weak cudaMalloc
#endif
int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);

enum { PAGE = 4096, MOST = 1 << 22, LEFT = 200 };

int main(int argc, char **argv)
{
	int failed = 0;
	(void)argv;
#ifdef USES
	void *pointer = NULL;
	failed = cudaMalloc(&pointer, 1 << 20) || cudaFree(pointer);
#elif defined WEAK
	void *pointer = NULL;
	failed = cudaMalloc ? cudaMalloc(&pointer, 1 << 20) : 0;
#elif defined LATE
	failed = argc > 1 && !dlopen(argv[1], RTLD_NOW);
#elif defined MAPPINGS
	char *pages = mmap(NULL, (size_t)MOST * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	long made = 0;
	while (made < MOST && mprotect(pages + made * PAGE, PAGE, PROT_NONE) == 0)
		made += 2;
	for (int i = 0; i < LEFT / 2; i++, made -= 2)
		mprotect(pages + (made - 2) * PAGE, PAGE, PROT_READ);
#endif
	if (argc > 1) {
		puts("up");
		fflush(stdout);
		getchar();
	}
	return failed;
}
