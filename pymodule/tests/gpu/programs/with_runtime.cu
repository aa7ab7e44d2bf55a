/* A program with a libcudart of its own in it (nvcc -cudart static): memory of cudaMalloc, and of cudaMallocAsync that
 * is taken and given back in each step. */
#include "steps.h"

enum { COUNT = 64 << 20, SMALL = 1 << 20, BLOCK = 256 };

static __global__ void advance(unsigned *values, unsigned count, unsigned step)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		values[i] = values[i] * 1664525u + step;
}

static __global__ void mix(unsigned *values, const unsigned *others, unsigned count)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		values[i] ^= others[i] >> 3;
}

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? atoi(argv[1]) : 0;
	const size_t size = COUNT * sizeof(unsigned), small = SMALL * sizeof(unsigned);
	unsigned *values[2], *host = (unsigned *)malloc(size), *pinned;
	cudaStream_t streams[2];
	int number = 0;
	CHECK(cudaMallocHost((void **)&pinned, small));
	for (int i = 0; i < 2; i++) {
		CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
		CHECK(cudaMalloc((void **)&values[i], size));
		CHECK(cudaMemset(values[i], i + 1, size));
	}
	CHECK(cudaDeviceSynchronize());
	for (; goes_on(number, steps); number++) {
		for (int i = 0; i < 2; i++) {
			unsigned *passing;
			CHECK(cudaMallocAsync((void **)&passing, small, streams[i]));
			advance<<<COUNT / BLOCK, BLOCK, 0, streams[i]>>>(values[i], COUNT, (unsigned)number);
			CHECK(cudaGetLastError());
			CHECK(cudaMemcpyAsync(passing, values[i] + COUNT / 2, small, cudaMemcpyDeviceToDevice, streams[i]));
			mix<<<SMALL / BLOCK, BLOCK, 0, streams[i]>>>(values[i], passing, SMALL);
			CHECK(cudaGetLastError());
			CHECK(cudaFreeAsync(passing, streams[i]));
		}
		CHECK(cudaStreamSynchronize(streams[1]));
		CHECK(cudaMemcpyAsync(pinned, values[0], small, cudaMemcpyDeviceToHost, streams[0]));
		CHECK(cudaStreamSynchronize(streams[0]));
		note(pinned, 4096);
		if (number == 0)
			ready(2 * size);
	}
	for (int i = 0; i < 2; i++) {
		CHECK(cudaMemcpy(host, values[i], size, cudaMemcpyDeviceToHost));
		note(host, size);
		CHECK(cudaFree(values[i]));
		CHECK(cudaStreamDestroy(streams[i]));
	}
	CHECK(cudaFreeHost(pinned));
	free(host);
	return end(number);
}
