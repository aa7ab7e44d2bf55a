/* A library that takes memory from CUDA in every way, one block of each kind after another; account.c loads it under
 * several names. Nothing here is a tail call: the address returned to is here. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

int cudaMalloc(void **, size_t);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaFree(void *);
int cudaMallocAsync(void **, size_t, void *);
int cudaFreeAsync(void *, void *);
int cudaStreamSynchronize(void *);
int cudaMallocFromPoolAsync(void **, size_t, void *, void *);
int cuMemAlloc_v2(uintptr_t *, size_t);
int cuMemFree_v2(uintptr_t);
int cuMemCreate(uint64_t *, size_t, const void *, unsigned long long);
int cuMemRelease(uint64_t);
int cuMemRetainAllocationHandle(uint64_t *, void *);
int cuMemMap(uintptr_t, size_t, size_t, uint64_t, unsigned long long);
int cuMemUnmap(uintptr_t, size_t);
int cuMemAddressReserve(uintptr_t *, size_t, size_t, uintptr_t, unsigned long long);
int cudaMemPoolCreate(void **, const void *);
int cudaMemPoolDestroy(void *);
int cudaDeviceSetMemPool(int, void *);
int cudaGetDevice(int *);
void tms_torch_free(void *, ssize_t, int, void *);

enum { MIB = 1 << 20, PIECE = 4 * MIB, MOST = 128 };
static struct {
	int type, handle_types, location_type, location;
	char rest[72];
} prop = {1, 0, 1, 0, {0}};

static void *blocks[MOST], *ordered[MOST], *pool;
static int block_count, ordered_count;
static uint64_t handles[2];
static uintptr_t range; /* of two handles, side by side */

#define DO(name) if (strcmp(what, name) == 0) code =

int accounted(const char *what, size_t mib)
{
	volatile int code = -1;
	size_t pitch = 0;
	uint64_t again;
	DO("malloc") cudaMalloc(&blocks[block_count++], mib * MIB);
	DO("driver") cuMemAlloc_v2((uintptr_t *)&blocks[block_count++], mib * MIB);
	DO("pitch") cudaMallocPitch(&blocks[block_count++], &pitch, 1000, mib * 1024); /* 1 KiB each */
	DO("free") cudaFree(blocks[--block_count]);
	DO("torchfree") (tms_torch_free(blocks[--block_count], 0, 0, NULL), 0);
	DO("driverfree") cuMemFree_v2((uintptr_t)blocks[--block_count]);
	DO("refused") (code = cudaFree(blocks[block_count - 1])) == 0 ? -1 : 0;
	DO("create") (cudaGetDevice(&prop.location), cuMemCreate(&handles[mib], PIECE, &prop, 0));
	DO("retain") cuMemRetainAllocationHandle(&again, (void *)(range + mib * PIECE));
	DO("release") cuMemRelease(handles[mib]);
	DO("reserve") cuMemAddressReserve(&range, 2 * PIECE, 0, 0, 0);
	DO("map") cuMemMap(range + mib * PIECE, PIECE, 0, handles[mib], 0);
	DO("unmap") cuMemUnmap(range + mib * PIECE, PIECE);
	DO("unmapboth") cuMemUnmap(range, 2 * PIECE);
	DO("pool") (cudaGetDevice(&prop.location), cudaMemPoolCreate(&pool, &prop));
	DO("current") cudaDeviceSetMemPool(prop.location, pool);
	DO("destroy") cudaMemPoolDestroy(pool);
	DO("async") cudaMallocAsync(&ordered[ordered_count++], mib * MIB, NULL);
	DO("frompool") cudaMallocFromPoolAsync(&ordered[ordered_count++], mib * MIB, pool, NULL);
	DO("asyncfree") cudaFreeAsync(ordered[--ordered_count], NULL) ?: cudaStreamSynchronize(NULL);
	DO("forget") (block_count = 0);
	return code;
}
