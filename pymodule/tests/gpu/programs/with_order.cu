/* Stream-ordered memory, as an unchanged program uses it. Called as: with_order pairs|ahead|pools|streams. pairs prints the
 * microseconds of a pair of cudaMallocAsync and cudaFreeAsync with a kernel, small and large. */
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <thread>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		cudaError_t code_ = (cudaError_t)(call);                                           \
		if (code_) {                                                                       \
			printf("%s: %s\n", #call, cudaGetErrorString(code_));                      \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static double now()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

__global__ void touch(int *p, size_t count)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	if (i < count)
		p[i] += 1;
}

__global__ void work(char *p, long long clocks, char value)
{
	for (long long start = clock64(); clock64() - start < clocks;)
		;
	*p = value;
}

static int pairs()
{
	const size_t sizes[] = {64 << 10, 8 << 20};
	const int steps = 1000, each = 8;
	unsigned long long most = ~0ull;
	double best[] = {1e9, 1e9};
	cudaMemPool_t pool;
	cudaStream_t stream;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
	CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
	for (int round = 0; round < 3; round++)
		for (int k = 0; k < 2; k++) {
			void *p[each];
			CHECK(cudaDeviceSynchronize());
			double start = now();
			for (int i = 0; i < steps; i++) {
				for (int j = 0; j < each; j++) {
					CHECK(cudaMallocAsync(&p[j], sizes[k] * (j % 3 + 1), stream));
					touch<<<64, 256, 0, stream>>>((int *)p[j], 1 << 14);
				}
				for (int j = 0; j < each; j++)
					CHECK(cudaFreeAsync(p[j], stream));
			}
			CHECK(cudaDeviceSynchronize());
			double took = (now() - start) / steps / each * 1e6;
			best[k] = took < best[k] ? took : best[k];
		}
	printf("%.3f %.3f\n", best[0], best[1]);
	return 0;
}

/* Six tenths of the device, again and again, ahead of a second of work for each. */
static int ahead()
{
	int khz = 0;
	size_t available, total;
	char *p, last = 0;
	cudaStream_t stream, other;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamCreate(&other));
	CHECK(cudaMemGetInfo(&available, &total));
	CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
	double start = now(), slowest = 0;
	for (int i = 0; i < 4; i++) {
		cudaStream_t in = i < 3 ? stream : other; /* another stream waits on the device */
		double begin = now();
		CHECK(cudaMallocAsync((void **)&p, available / 10 * 6, in));
		slowest = now() - begin > slowest ? now() - begin : slowest;
		work<<<1, 1, 0, in>>>(p, khz * 1000ll, i + 1);
		if (i == 3)
			CHECK(cudaMemcpyAsync(&last, p, 1, cudaMemcpyDeviceToHost, in));
		CHECK(cudaFreeAsync(p, in));
	}
	CHECK(cudaDeviceSynchronize());
	printf("%.3f %.3f %d\n", slowest, now() - start, last);
	return 0;
}

static sigjmp_buf back;

static void fault(int)
{
	siglongjmp(back, 1);
}

/* Prints what the CPU can do with memory of a pool. */
static void touch_from_host(const char *what, cudaMemPool_t pool, cudaStream_t stream)
{
	volatile char *p = nullptr;
	cudaError_t code = cudaMallocFromPoolAsync((void **)&p, 1 << 20, pool, stream);
	if (!code)
		code = cudaStreamSynchronize(stream);
	if (code)
		printf("%s: %s\n", what, cudaGetErrorString(code));
	else if (sigsetjmp(back, 1) == 0)
		p[5] = 42, printf("%s: %d\n", what, p[5]);
	else
		printf("%s: a fault\n", what);
	cudaFreeAsync((void *)p, stream);
}

static int pools()
{
	cudaStream_t stream;
	cudaMemPool_t pool;
	cudaMemPoolProps props;
	void *p;
	unsigned long long used = 0, keep = ~0ull;
	CHECK(cudaStreamCreate(&stream));
	signal(SIGSEGV, fault);
	signal(SIGBUS, fault);
	memset(&props, 0, sizeof props);
	props.allocType = cudaMemAllocationTypePinned;
	props.location.type = cudaMemLocationTypeHostNuma;
	if (cudaMemPoolCreate(&pool, &props) == cudaSuccess) {
		cudaMemAccessDesc access = {};
		access.location.type = cudaMemLocationTypeDevice;
		access.flags = cudaMemAccessFlagsProtReadWrite;
		CHECK(cudaMemPoolSetAccess(pool, &access, 1));
		touch_from_host("host", pool, stream);
	}
	cudaGetLastError();
	memset(&props, 0, sizeof props);
	props.allocType = cudaMemAllocationTypePinned;
	props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
	props.location.type = cudaMemLocationTypeDevice;
	CHECK(cudaMemPoolCreate(&pool, &props));
	CHECK(cudaMallocFromPoolAsync(&p, 1 << 20, pool, stream));
	CHECK(cudaStreamSynchronize(stream));
	cudaMemPoolPtrExportData data;
	printf("export: %d\n", cudaMemPoolExportPointer(&data, p));
	CHECK(cudaFreeAsync(p, stream));
	props.handleTypes = cudaMemHandleTypeNone;
	CHECK(cudaMemPoolCreate(&pool, &props));
	CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
	CHECK(cudaMallocFromPoolAsync(&p, 8 << 20, pool, stream));
	CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
	printf("used: %llu\n", used);
	CHECK(cudaFreeAsync(p, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaMemPoolTrimTo(pool, 0));
	CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &used));
	printf("reserved: %llu\n", used);
	return 0;
}

/* What memory in stream order relies on: no two streams have the same number, whatever their handles. */
static int streams()
{
	unsigned long long ids[8] = {0};
	CUstream made;
	CUcontext own;
	CHECK(cudaFree(0));
	CHECK(cuStreamGetId(CU_STREAM_LEGACY, &ids[0]));
	CHECK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[1]));
	std::thread([&] { cudaFree(0), cuStreamGetId(CU_STREAM_PER_THREAD, &ids[2]); }).join();
	std::thread([&] { cudaFree(0), cuStreamGetId(CU_STREAM_PER_THREAD, &ids[3]); }).join();
	for (int i = 4; i < 7; i++) {
		CHECK(cuStreamCreate(&made, 0));
		CHECK(cuStreamGetId(made, &ids[i]));
		CHECK(cuStreamDestroy(made)); /* the driver may give the next the same handle */
	}
#if CUDA_VERSION >= 13000
	CHECK(cuCtxCreate(&own, nullptr, 0, 0));
#else
	CHECK(cuCtxCreate(&own, 0, 0));
#endif
	CHECK(cuStreamGetId(CU_STREAM_LEGACY, &ids[7]));
	for (int i = 0; i < 8; i++)
		printf("%llu ", ids[i]);
	puts("");
	return 0;
}

int main(int argc, char **argv)
{
	CHECK(cudaFree(0));
	if (argc == 2 && !strcmp(argv[1], "pairs"))
		return pairs();
	if (argc == 2 && !strcmp(argv[1], "ahead"))
		return ahead();
	if (argc == 2 && !strcmp(argv[1], "pools"))
		return pools();
	if (argc == 2 && !strcmp(argv[1], "streams"))
		return streams();
	return 2;
}
