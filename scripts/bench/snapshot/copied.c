/* Device memory that is compared with what it had, a part in each step: copied FILE MIB. With a libcudart of its own in
 * it (nvcc -cudart static), or on the simulator. A line of FILE has the time, the step, the PID namespace and a result. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
#define C extern "C"
#else
#define C
#endif
C int cudaMalloc(void **memory, size_t size);
C int cudaMemcpy(void *to, const void *from, size_t size, int kind);
C int cudaDeviceSynchronize(void);

enum { MIB = 1 << 20, PART = 16 * MIB, TO_DEVICE = 1, TO_HOST = 2 };

static void check(int code, const char *what)
{
	if (code == 0)
		return;
	fprintf(stderr, "%s: %d\n", what, code);
	exit(1);
}

static void fill(uint64_t *words, uint64_t seed)
{
	for (size_t i = 0; i < PART / sizeof *words; i++)
		words[i] = (seed + i) * UINT64_C(0x9e3779b97f4a7c15);
}

static void line(int file, long step, const char *result)
{
	struct stat space;
	struct timespec now;
	char text[200];
	check(stat("/proc/self/ns/pid", &space), "stat");
	clock_gettime(CLOCK_REALTIME, &now);
	int size = snprintf(text, sizeof text, "%lld.%06ld %ld %llu %s\n", (long long)now.tv_sec, now.tv_nsec / 1000, step,
			    (unsigned long long)space.st_ino, result);
	check(write(file, text, (size_t)size) != size, "write");
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	const int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	const size_t parts = (size_t)atoi(argv[2]) * MIB / PART;
	uint64_t *expected = (uint64_t *)malloc(PART), *found = (uint64_t *)malloc(PART);
	char **memory = (char **)malloc(parts * sizeof *memory);
	for (size_t i = 0; i < parts; i++) {
		fill(expected, i * PART);
		check(cudaMalloc((void **)&memory[i], PART), "cudaMalloc");
		check(cudaMemcpy(memory[i], expected, PART, TO_DEVICE), "cudaMemcpy");
	}
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	for (long step = 0;; step++) {
		fill(expected, (size_t)step % parts * PART);
		check(cudaMemcpy(found, memory[(size_t)step % parts], PART, TO_HOST), "cudaMemcpy");
		line(file, step, memcmp(found, expected, PART) ? "WRONG" : "right");
		usleep(2000);
	}
}
