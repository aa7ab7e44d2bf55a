/* A pool as llama.cpp's: one reservation of addresses, into which the program maps more memory as it grows, and from
 * whose end it takes and gives back. */
#include <cuda.h>

#include "steps.h"

enum { BLOCK = 256 };

static CUdeviceptr start;
static size_t mapped, granule, used;

static __global__ void advance(unsigned *values, unsigned count, unsigned step)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		values[i] = values[i] * 1664525u + i + step;
}

static unsigned *take(size_t bytes)
{
	if (used + bytes > mapped) {
		CUmemAllocationProp kind = {};
		CUmemAccessDesc access = {};
		CUmemGenericAllocationHandle handle;
		const size_t more = (used + bytes - mapped + granule - 1) / granule * granule;
		kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
		kind.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		CHECK(cuMemCreate(&handle, more, &kind, 0));
		CHECK(cuMemMap(start + mapped, more, 0, handle, 0));
		CHECK(cuMemRelease(handle));
		CHECK(cuMemSetAccess(start + mapped, more, &access, 1));
		mapped += more;
	}
	used += bytes;
	return (unsigned *)(start + used - bytes);
}

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? atoi(argv[1]) : 0;
	const unsigned count = 16 << 20;
	unsigned host[1024];
	cudaStream_t stream;
	int number = 0;
	CHECK(cudaStreamCreate(&stream));
	CUmemAllocationProp kind = {};
	kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CHECK(cuMemGetAllocationGranularity(&granule, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	CHECK(cuMemAddressReserve(&start, (size_t)32 << 30, 0, 0, 0));
	unsigned *kept = take(count * sizeof *kept);
	CHECK(cudaMemsetAsync(kept, 7, count * sizeof *kept, stream));
	for (; goes_on(number, steps); number++) {
		const unsigned passing = (1u + number * 7919u % 32u) << 18;
		unsigned *values = take(passing * sizeof *values);
		CHECK(cudaMemcpyAsync(values, kept, passing * sizeof *values, cudaMemcpyDeviceToDevice, stream));
		advance<<<passing / BLOCK, BLOCK, 0, stream>>>(values, passing, (unsigned)number);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpyAsync(kept, values, passing * sizeof *values, cudaMemcpyDeviceToDevice, stream));
		CHECK(cudaMemcpyAsync(host, values, sizeof host, cudaMemcpyDeviceToHost, stream));
		CHECK(cudaStreamSynchronize(stream));
		note(host, sizeof host);
		used -= passing * sizeof *values;
		if (number == 0)
			ready(mapped);
	}
	unsigned *all = (unsigned *)malloc(count * sizeof *all);
	CHECK(cudaMemcpy(all, kept, count * sizeof *all, cudaMemcpyDeviceToHost));
	note(all, count * sizeof *all);
	return end(number);
}
