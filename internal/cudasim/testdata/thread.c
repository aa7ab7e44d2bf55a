// Twenty threads at once.
#include "cases.h"

enum { THREADS = 20, ROUNDS = 200 };

static void *create_map_unmap_release(void *number)
{
	CUcontext context;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	CUdeviceptr at = reserve(4 * GRANULE);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	for (int round = 0; round < ROUNDS; round++) {
		CUmemGenericAllocationHandle handles[4];
		for (int i = 0; i < 4; i++) {
			handles[i] = create(GRANULE);
			OK(cuMemMap(at + (size_t)i * GRANULE, GRANULE, 0, handles[i], 0));
		}
		allow(at, 4 * GRANULE);
		for (int i = 0; i < 4; i++) {
			CHECK(*bytes(at + (size_t)i * GRANULE) == 0);
			OK(cuMemsetD8Async(at + (size_t)i * GRANULE, (unsigned char)(1 + (intptr_t)number),
					   64, stream));
		}
		CUdeviceptr plain;
		OK(cuMemAlloc_v2(&plain, 4096 * (1 + (size_t)round % 7)));
		OK(cuStreamSynchronize(stream));
		for (int i = 0; i < 4; i++) {
			CHECK(bytes(at)[(size_t)i * GRANULE + 63] == 1 + (intptr_t)number);
			OK(cuMemRelease(handles[i]));
		}
		OK(cuMemUnmap(at, 4 * GRANULE));
		OK(cuMemFree_v2(plain));
	}
	OK(cuStreamDestroy_v2(stream));
	OK(cuMemAddressFree(at, 4 * GRANULE));
	return NULL;
}

CASE(hammering)
{
	pthread_t threads[THREADS];
	start(0);
	for (intptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, create_map_unmap_release, (void *)i));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	const char *names[] = {"handles",      "handle_bytes", "reservations", "reserved_bytes", "mappings",
			       "mapped_bytes", "allocations",  "streams",      "pending",	 "used:0"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		CHECK(cudasim_stat(names[i]) == 0);
	CHECK(cudasim_stat("calls:cuMemCreate") == THREADS * ROUNDS * 4);
}
