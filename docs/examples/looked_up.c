/* A program that pauses if it was started with libtms.so, and works as ever if not:
 *
 *     gcc looked_up.c -L/usr/local/cuda/lib64 -lcudart -ldl
 *     LD_PRELOAD=build/lib/libtms.so ./a.out
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#include "cudart.h"

#define SIZE ((size_t)64 << 20)

int main(void)
{
	void (*set_region)(bool) = (void (*)(bool))dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
	int (*pause)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "tms_pause");
	int (*resume)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "tms_resume");
	bool pausable = set_region && pause && resume;
	size_t before, paused, total;
	void *cache;

	if (pausable)
		set_region(true);
	if (cudaMalloc(&cache, SIZE))
		return 1;
	if (pausable)
		set_region(false);

	if (!pausable) {
		puts("not pausable");
		return cudaFree(cache);
	}
	cudaMemGetInfo(&before, &total);
	if (pause(NULL)) /* all tags */
		return 1;
	cudaMemGetInfo(&paused, &total);
	printf("%zu MiB are free for others\n", (paused - before) >> 20);
	if (resume(NULL))
		return 1;
	return cudaFree(cache);
}
