/* Legal sequences of calls that no framework of the tests makes, while pauses from outside come at any moment: each call
 * succeeds, and contents are right. arguments: the sequence, how many pauses. */
#include "mapping.h"

int cuMemcpy(uintptr_t, uintptr_t, size_t);
int cuMemGetAccess(unsigned long long *, const struct access *, uintptr_t);
int cuMemGetAllocationPropertiesFromHandle(struct prop *, uint64_t);
int cuPointerSetAttribute(const void *, int, uintptr_t);
int cudaEventDestroy(void *);
int cudaGraphExecDestroy(void *);
int cudaHostRegister(void *, size_t, unsigned);
int cudaHostUnregister(void *);
int cudaMallocFromPoolAsync(void **, size_t, void *, void *);
int cudaMemPoolCreate(void **, const void *);
int cudaMemPoolDestroy(void *);
int cudaMemPoolTrimTo(void *, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaStreamWaitEvent(void *, void *, unsigned);

enum { SIZE = 2 * MIB, DEFAULT = 4, SYNC_MEMOPS = 6, PATIENCE = 600 };

static unsigned char host[SIZE], back[SIZE];
static unsigned round_; /* of the sequence */

static void filled_with(const void *memory, size_t size, unsigned char value)
{
	EXPECT(cudaMemcpy(back, memory, size, DEFAULT), 0);
	for (size_t i = 0; i < size; i += 4093)
		EXPECT(back[i], value);
}

/* The handle of mapped memory is asked for, and the memory goes to another address with it. */
static void retains(void)
{
	static uintptr_t at;
	uintptr_t other = 0;
	uint64_t handle = 0;
	struct prop prop;
	if (!at) {
		IN_REGION(EXPECT(cuMemCreate(&handle, SIZE, &(struct prop){.type = 1, .location_type = 1}, 0), 0));
		EXPECT(cuMemAddressReserve(&at, SIZE, 0, 0, 0), 0);
		EXPECT(cuMemMap(at, SIZE, 0, handle, 0), 0);
		EXPECT(cuMemSetAccess(at, SIZE, &readwrite, 1), 0);
		EXPECT(cuMemRelease(handle), 0);
	}
	EXPECT(cudaMemset((void *)at, (int)(round_ & 0x7f), SIZE), 0);
	EXPECT(cuMemRetainAllocationHandle(&handle, (void *)(at + SIZE / 2)), 0);
	EXPECT(cuMemGetAllocationPropertiesFromHandle(&prop, handle), 0);
	EXPECT(prop.location_type, 1);
	EXPECT(cuMemAddressReserve(&other, SIZE, 0, 0, 0), 0);
	EXPECT(cuMemUnmap(at, SIZE), 0);
	EXPECT(cuMemAddressFree(at, SIZE), 0);
	EXPECT(cuMemMap(other, SIZE, 0, handle, 0), 0);
	EXPECT(cuMemSetAccess(other, SIZE, &readwrite, 1), 0);
	EXPECT(cuMemRelease(handle), 0);
	at = other;
	filled_with((void *)at, SIZE, round_ & 0x7f);
}

/* Questions, settings and handles for other processes. */
static void asks(void)
{
	static char *memory;
	struct handle handle;
	unsigned long long access = 0;
	uintptr_t base = 0;
	size_t size = 0;
	if (!memory)
		memory = pausable(SIZE, "asked", true);
	EXPECT(cuPointerSetAttribute(&(unsigned){1}, SYNC_MEMOPS, (uintptr_t)memory), 0);
	EXPECT(cudaIpcGetMemHandle(&handle, memory), 0);
	EXPECT(cuMemGetAddressRange_v2(&base, &size, (uintptr_t)memory + 5), 0);
	CHECK(base == (uintptr_t)memory && size == SIZE);
	EXPECT(cuMemGetAccess(&access, &readwrite, (uintptr_t)memory), 0);
	EXPECT(access, 3);
}

/* Copies that leave it to the driver whose the addresses are, from and to host memory that comes and goes. */
static void copies(void)
{
	static char *memory;
	const unsigned char value = round_ & 0x7f;
	if (!memory)
		memory = pausable(SIZE, "copied", true);
	memset(host, value, SIZE);
	EXPECT(cudaHostRegister(host, SIZE, 0), 0);
	EXPECT(cudaMemcpyAsync(memory, host, SIZE / 2, DEFAULT, NULL), 0);
	EXPECT(cuMemcpy((uintptr_t)memory + SIZE / 2, (uintptr_t)host, SIZE / 2), 0);
	EXPECT(cudaStreamSynchronize(NULL), 0);
	EXPECT(cudaHostUnregister(host), 0);
	EXPECT(cudaMemcpy2D(back, 64, memory + 512, 4096, 64, 100, DEFAULT), 0);
	EXPECT(back[6399], value);
	EXPECT(cuMemcpy((uintptr_t)memory, (uintptr_t)memory + SIZE / 2, SIZE / 2), 0);
	filled_with(memory, SIZE, value);
}

/* A graph for each launch. */
static void captures(void)
{
	static char *from, *to;
	void *stream = NULL, *graph = NULL, *made = NULL;
	if (!from) {
		from = pausable(SIZE, "from", true);
		to = pausable(SIZE, "to", true);
	}
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	EXPECT(cudaMemsetAsync(from, (int)(round_ & 0x7f), SIZE, stream), 0);
	EXPECT(cudaMemcpyAsync(to, from, SIZE, DEFAULT, stream), 0);
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	EXPECT(cudaGraphInstantiate(&made, graph, 0), 0);
	EXPECT(cudaGraphDestroy(graph), 0);
	EXPECT(cudaGraphLaunch(made, stream), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	EXPECT(cudaGraphExecDestroy(made), 0);
	EXPECT(cudaStreamDestroy(stream), 0);
	filled_with(to, SIZE, round_ & 0x7f);
}

/* Memory of a pool of the program's own, made on one stream and freed on another; the pool goes at once. */
static void pools(void)
{
	struct {
		int allocation, handles, location, device;
		void *security;
		size_t most;
		unsigned short usage;
		unsigned char reserved[54];
	} plain = {.allocation = 1, .location = 1};
	void *streams[2], *event = NULL, *pool = NULL;
	char *memory = NULL;
	for (int i = 0; i < 2; i++)
		EXPECT(cudaStreamCreate(&streams[i]), 0);
	EXPECT(cudaEventCreate(&event), 0);
	EXPECT(cudaMemPoolCreate(&pool, &plain), 0);
	IN_REGION(EXPECT(cudaMallocFromPoolAsync((void **)&memory, SIZE, pool, streams[0]), 0));
	EXPECT(cudaMemsetAsync(memory, (int)(round_ & 0x7f), SIZE, streams[0]), 0);
	EXPECT(cudaEventRecord(event, streams[0]), 0);
	EXPECT(cudaStreamWaitEvent(streams[1], event, 0), 0);
	EXPECT(cudaMemcpyAsync(back, memory, SIZE, DEFAULT, streams[1]), 0);
	EXPECT(cudaFreeAsync(memory, streams[1]), 0);
	EXPECT(cudaStreamSynchronize(streams[1]), 0);
	EXPECT(back[SIZE - 1], round_ & 0x7f);
	EXPECT(cudaMemPoolTrimTo(pool, 0), 0);
	EXPECT(cudaMemPoolDestroy(pool), 0);
	EXPECT(cudaEventDestroy(event), 0);
	for (int i = 0; i < 2; i++)
		EXPECT(cudaStreamDestroy(streams[i]), 0);
}

static const char *sequence;
static _Atomic bool over;
static _Atomic unsigned rounds;

static void *run(void *unused)
{
	tms_set_enable_cpu_backup(true);
	while (!over) {
		CHECK(RUN_PART(sequence, {"retains", retains}, {"asks", asks}, {"copies", copies},
			       {"captures", captures}, {"pools", pools}));
		rounds = ++round_;
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	CHECK(argc == 3);
	sequence = argv[1];
	pausable(MIB, "always", true);
	start(&thread, run, NULL);
	AWAIT(rounds > 0);
	for (int i = 0; i < atoi(argv[2]); i++) {
		const unsigned before = rounds;
		EXPECT(tms_pause_gated(NULL, PATIENCE), 0);
		usleep((useconds_t)(i * 37 % 1000));
		EXPECT(tms_resume(NULL), 0);
		AWAIT(rounds > before || i % 3);
	}
	over = true;
	join(thread);
	return 0;
}
