/* A program with a static libcudart: the loader binds no function of the runtime's. The program looks the library up by
 * name. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemset(void *, int, size_t);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemGetInfo(size_t *, size_t *);

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

enum { SIZE = 64 << 20 };

static size_t unused(void)
{
	size_t bytes = 0, total = 0;
	cudaMemGetInfo(&bytes, &total);
	return bytes;
}

int main(void)
{
	void (*region)(bool) = (void (*)(bool))dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
	void (*backup)(bool) = (void (*)(bool))dlsym(RTLD_DEFAULT, "tms_set_enable_cpu_backup");
	int (*pause_memory)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "tms_pause");
	int (*resume_memory)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "tms_resume");
	char *memory, last = 0;
	CHECK(region && backup && pause_memory && resume_memory);
	CHECK(cudaFree(NULL) == 0);
	region(true);
	backup(true);
	CHECK(cudaMalloc((void **)&memory, SIZE) == 0);
	CHECK(cudaMemset(memory, 5, SIZE) == 0);
	size_t before = unused();
	CHECK(pause_memory(NULL) == 0);
	CHECK(unused() - before == SIZE);
	CHECK(resume_memory(NULL) == 0);
	CHECK(cudaMemcpy(&last, memory + SIZE - 1, 1, 2) == 0 && last == 5);
	CHECK(cudaFree(memory) == 0);
	CHECK(unused() - before == SIZE);
	return 0;
}
