// training FILE STEPS MICROSECONDS: has weights in device memory, changes them in each step by numbers that are drawn, and
// appends the step and the loss to the file, in all its bits. It knows nothing of tms.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cudaMalloc(void **pointer, size_t size);
int cudaMemcpy(void *to, const void *from, size_t size, int kind);

enum { WEIGHTS = 1 << 16, TO_DEVICE = 1, TO_HOST = 2 };

static float weights[WEIGHTS];

int main(int argc, char **argv)
{
	void *device;
	uint64_t drawn = 1;
	if (argc != 4 || cudaMalloc(&device, sizeof weights) || cudaMemcpy(device, weights, sizeof weights, TO_DEVICE))
		return 1;
	int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	for (long step = 0; step < atol(argv[2]); step++) {
		double loss = 0;
		if (cudaMemcpy(weights, device, sizeof weights, TO_HOST))
			return 2;
		for (int i = 0; i < WEIGHTS; i++) {
			drawn = drawn * 6364136223846793005u + 1442695040888963407u;
			weights[i] += ((float)(drawn >> 40) / (1 << 24) - weights[i]) * 0.01f;
			loss += weights[i];
		}
		char line[80];
		int length = snprintf(line, sizeof line, "%ld %a\n", step, loss);
		if (cudaMemcpy(device, weights, sizeof weights, TO_DEVICE) || write(file, line, length) != length)
			return 3;
		usleep(atoi(argv[3]));
	}
	return 0;
}
