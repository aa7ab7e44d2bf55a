/* A program that shares a device with others of its kind: it takes memory in some steps, then counts in it, round after
 * round, and prints the sum. Arguments: MiB (0: all that it is told is free), steps, rounds, milliseconds without work in
 * each round, perhaps a device. */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 5 || argc == 6);
	const int mib = atoi(argv[1]), steps = atoi(argv[2]), rounds = atoi(argv[3]), gap = atoi(argv[4]);
	unsigned *memory[64];
	CHECK(steps <= 64);
	if (argc == 6)
		EXPECT(cudaSetDevice(atoi(argv[5])), 0);
	EXPECT(cudaFree(NULL), 0); /* makes the context */
	const size_t size = (mib ? (size_t)mib : free_bytes() / MIB) / (size_t)steps * MIB;
	for (int i = 0; i < steps; i++) {
		int code = cudaMalloc((void **)&memory[i], size);
		if (code) {
			printf("%d %s\n", code, tms_last_error());
			return 0;
		}
		EXPECT(cudaMemset(memory[i], 0, size), 0);
	}
	puts("has it");
	fflush(stdout);
	unsigned long sum = 0;
	for (int round = 0; round < rounds; round++) {
		unsigned *at = memory[round % steps] + round % (int)(size / sizeof *at), value = 0;
		EXPECT(launch_add(at, 1), 0);
		for (int i = 1; i < 100; i++) {
			EXPECT(cudaMemcpy(&value, at, sizeof value, 2), 0);
			value++;
			EXPECT(cudaMemcpy(at, &value, sizeof value, 1), 0);
		}
		EXPECT(value, 100);
		if (gap)
			usleep((useconds_t)gap * 1000);
	}
	for (int i = 0; i < steps; i++) {
		unsigned *copy = malloc(size);
		EXPECT(cudaMemcpy(copy, memory[i], size, 2), 0);
		for (size_t at = 0; at < size / sizeof *copy; at++)
			sum += copy[at];
		free(copy);
		EXPECT(cudaFree(memory[i]), 0);
	}
	printf("%lu\n", sum);
	return 0;
}
