/* Stream-ordered memory: the default pool, a pool of the program's own, both on two streams, with events between them. */
#include "steps.h"

enum { COUNT = 4 << 20, BLOCK = 256 };

static __global__ void advance(unsigned *values, const unsigned *others, unsigned count, unsigned step)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		values[i] = (values[i] ^ others[i] >> 3) * 1664525u + step;
}

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? atoi(argv[1]) : 0;
	const size_t size = COUNT * sizeof(unsigned);
	unsigned *kept, *host = (unsigned *)malloc(size);
	cudaStream_t streams[2];
	cudaEvent_t done;
	cudaMemPool_t pool;
	cudaMemPoolProps kind = {};
	uint64_t threshold = 64 << 20;
	int number = 0;
	kind.allocType = cudaMemAllocationTypePinned;
	kind.location.type = cudaMemLocationTypeDevice;
	CHECK(cudaMemPoolCreate(&pool, &kind));
	CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
	CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
	for (int i = 0; i < 2; i++)
		CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
	CHECK(cudaMalloc((void **)&kept, size));
	CHECK(cudaMemset(kept, 5, size));
	CHECK(cudaDeviceSynchronize());
	for (; goes_on(number, steps); number++) {
		unsigned *a, *b;
		const unsigned count = (1u + number % 16u) << 18;
		cudaStream_t one = streams[number % 2], other = streams[1 - number % 2];
		CHECK(cudaMallocAsync((void **)&a, count * sizeof *a, one));
		CHECK(cudaMallocFromPoolAsync((void **)&b, size, pool, one));
		CHECK(cudaMemcpyAsync(a, kept, count * sizeof *a, cudaMemcpyDeviceToDevice, one));
		CHECK(cudaMemsetAsync(b, number & 255, size, one));
		advance<<<count / BLOCK, BLOCK, 0, one>>>(a, b, count, (unsigned)number);
		CHECK(cudaGetLastError());
		CHECK(cudaEventRecord(done, one));
		CHECK(cudaStreamWaitEvent(other, done, 0));
		advance<<<count / BLOCK, BLOCK, 0, other>>>(kept, a, count, (unsigned)number);
		CHECK(cudaGetLastError());
		CHECK(cudaFreeAsync(a, other));
		CHECK(cudaFreeAsync(b, one));
		CHECK(cudaMemcpyAsync(host, kept, 4096, cudaMemcpyDeviceToHost, other));
		CHECK(cudaStreamSynchronize(other));
		note(host, 4096);
		if (number % 16 == 0)
			CHECK(cudaMemPoolTrimTo(pool, 0));
		if (number == 0)
			ready(size);
	}
	CHECK(cudaMemcpy(host, kept, size, cudaMemcpyDeviceToHost));
	note(host, size);
	return end(number);
}
