// digest.cu is the kernel of the content hash: one thread block hashes one block of memory.
// scripts/generate-kernels.sh compiles it to digest.ptx.
#include "digest.h"

struct keys {
	digest_keys lane[DIGEST_LANES];
};

extern "C" __global__ void __launch_bounds__(DIGEST_THREADS)
tms_digest(const digest_block *blocks, digest_number *digests, const keys keys)
{
	const digest_block block = blocks[blockIdx.x];
	const uint4 *group = (const uint4 *)block.address;
	const unsigned count = (unsigned)(block.bytes / sizeof(uint4));
	digest_number sum[DIGEST_LANES] = {};
#pragma unroll 2
	for (unsigned i = threadIdx.x; i < count; i += 2 * DIGEST_THREADS) {
		const uint4 a = __ldcs(group + i);
		uint4 b = {};
		if (i + DIGEST_THREADS < count)
			b = __ldcs(group + i + DIGEST_THREADS);
		const digest_word w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
		for (int lane = 0; lane < DIGEST_LANES; lane++)
			sum[lane] = digest_step(sum[lane], &keys.lane[lane], w);
	}

	__shared__ digest_number partial[DIGEST_LANES][DIGEST_THREADS];
	for (int lane = 0; lane < DIGEST_LANES; lane++)
		partial[lane][threadIdx.x] = digest_multiply(sum[lane], digest_power(keys.lane[lane].q, threadIdx.x));
	for (unsigned half = DIGEST_THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half)
			for (int lane = 0; lane < DIGEST_LANES; lane++)
				partial[lane][threadIdx.x] =
					digest_add(partial[lane][threadIdx.x], partial[lane][threadIdx.x + half]);
	}
	if (threadIdx.x < DIGEST_LANES)
		digests[blockIdx.x * DIGEST_LANES + threadIdx.x] = digest_final(partial[threadIdx.x][0]);
}
