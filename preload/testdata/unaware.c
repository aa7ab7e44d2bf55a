/* A program that knows of no pool, with TMS_INIT_ENABLE and TMS_INIT_POOL: cudaMalloc, cudaFree and cudaFreeAsync mean
 * the same to it as without a pool. Called as: unaware KIND */
#include "host.h"

int cudaStreamCreateWithFlags(void **, unsigned);

enum { BLOCKS = 64, NON_BLOCKING = 1 };
static const char *kind;
static volatile bool opened, ran;

static void wait_for_it(void *unused)
{
	(void)unused;
	AWAIT(opened);
	ran = true;
}

static void note(void *unused)
{
	(void)unused;
	usleep(20000);
	ran = true;
}

static size_t size_of(int i)
{
	static const size_t sizes[] = {1, 100, 4096, 70000, MIB, 3 * MIB + 8};
	return sizes[i % 6];
}

static long long statistic(const char *name)
{
	char *text = stats(), *found = strstr(text, "\"pools\":[");
	CHECK(found && strstr(found, kind));
	found = strstr(found, name);
	CHECK(found);
	long long value = atoll(found + strlen(name) + 1);
	free(text);
	return value;
}

static void contents(void)
{
	void *block[BLOCKS], *none = (void *)1;
	size_t pitch = 0;
	EXPECT(cudaMalloc(&none, 0), 0);
	CHECK(!none);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < BLOCKS; i++) {
			EXPECT(cudaMalloc(&block[i], size_of(i)), 0);
			CHECK(block[i] && (uintptr_t)block[i] % 256 == 0);
			EXPECT(cudaMemset(block[i], i, size_of(i)), 0);
		}
		EXPECT(statistic("\"blocks\""), BLOCKS);
		size_t before = free_bytes();
		EXPECT(tms_pause(NULL), 0);
		CHECK(free_bytes() - before >= 40 * MIB);
		EXPECT(cudaFree(block[0]), 0);
		EXPECT(tms_resume(NULL), 0);
		for (int i = 1; i < BLOCKS; i++) {
			unsigned char last = 0;
			EXPECT(cudaMemcpy(&last, (char *)block[i] + size_of(i) - 1, 1, 2), 0);
			EXPECT(last, i);
		}
		EXPECT(cudaMallocPitch(&block[0], &pitch, 100, 10), 0);
		for (int i = 0; i < BLOCKS; i++)
			EXPECT(cudaFree(block[i]), 0);
		EXPECT(statistic("\"blocks\""), 0);
	}
}

static void refusals(void)
{
	char *a, *b;
	EXPECT(cudaMalloc((void **)&a, 4096), 0);
	EXPECT(cudaMalloc((void **)&b, 4096), 0);
	EXPECT(cudaFree(a + 256), 1);
	EXPECT(cudaFree(a), 0);
	EXPECT(cudaFree(a), 1); /* b may lie in the same segment */
	EXPECT(cudaFreeAsync(a, NULL), 1);
	EXPECT(cudaMemset(b, 1, 4096), 0);
	EXPECT(cudaFree(b), 0);
	EXPECT(cudaMalloc((void **)&a, (size_t)1 << 62), 2);
	CHECK(strlen(tms_last_error()) > 10);
}

/* A free waits for the devices. A stream-ordered free does not, and the block stays in use until the stream has come to
 * the free; an allocation that finds no other memory waits for that. */
static void order(void)
{
	void *stream, *a, *b;
	EXPECT(cudaStreamCreateWithFlags(&stream, NON_BLOCKING), 0);
	EXPECT(cudaMalloc(&a, MIB), 0);
	ran = false;
	EXPECT(cudaLaunchHostFunc(stream, note, NULL), 0);
	EXPECT(cudaFree(a), 0);
	CHECK(ran);

	EXPECT(cudaMallocAsync(&a, MIB, stream), 0);
	opened = ran = false;
	EXPECT(cudaLaunchHostFunc(stream, wait_for_it, NULL), 0);
	EXPECT(cudaFreeAsync(a, stream), 0);
	EXPECT(cudaFreeAsync(a, stream), 1);
	void *others[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		EXPECT(cudaMalloc(&others[i], MIB), 0);
		CHECK(others[i] != a);
	}
	CHECK(!ran);
	opened = true;
	EXPECT(cudaStreamSynchronize(stream), 0);
	EXPECT(cudaMalloc(&b, MIB), 0);
	EXPECT(cudaFree(b), 0);
	for (int i = 0; i < BLOCKS; i++)
		EXPECT(cudaFree(others[i]), 0);
	EXPECT(statistic("\"blocks\""), 0);
}

static void shortage(void)
{
	static void *all[4096];
	void *stream, *more;
	int count = 0;
	EXPECT(cudaStreamCreateWithFlags(&stream, NON_BLOCKING), 0);
	while (count < 4096 && cudaMalloc(&all[count], 8 * MIB) == 0)
		count++;
	CHECK(count > 20 && count < 4096);
	CHECK(strstr(tms_last_error(), "memory") || strstr(tms_last_error(), "room"));
	EXPECT(cudaLaunchHostFunc(stream, note, NULL), 0);
	for (int i = 0; i < count; i++)
		EXPECT(cudaFreeAsync(all[i], stream), 0);
	EXPECT(cudaMalloc(&more, 8 * MIB), 0); /* once the stream has come to the frees */
	/* Memory that another pool holds and does not need. */
	tms_set_current_tag("other");
	count = 0;
	while (count < 4096 && cudaMalloc(&all[count], 8 * MIB) == 0)
		count++;
	CHECK(count > 20);
	for (int i = 0; i < count; i++)
		EXPECT(cudaFree(all[i]), 0);
	tms_set_current_tag(NULL);
	EXPECT(cudaFree(more), 0);
}

static void tags(void)
{
	void *a, *b;
	unsigned char byte = 0;
	EXPECT(cudaMalloc(&a, MIB), 0);
	tms_set_current_tag("other");
	EXPECT(cudaMalloc(&b, MIB), 0);
	tms_set_current_tag(NULL);
	EXPECT(cudaMemset(b, 7, MIB), 0);
	EXPECT(tms_pause("default"), 0);
	EXPECT(cudaMemcpy(&byte, b, 1, 2), 0);
	EXPECT(byte, 7);
	EXPECT(tms_resume("default"), 0);
	EXPECT(cudaFree(a), 0);
	EXPECT(cudaFree(b), 0);
}

static void captures(void)
{
	void *stream, *busy, *graph, *a, *b, *c;
	EXPECT(cudaMalloc(&a, MIB), 0);
	EXPECT(cudaMalloc(&b, MIB), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamCreateWithFlags(&busy, NON_BLOCKING), 0);
	opened = ran = false;
	EXPECT(cudaLaunchHostFunc(busy, wait_for_it, NULL), 0);
	EXPECT(cudaFreeAsync(b, busy), 0);
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	EXPECT(cudaFree(a), 0);
	EXPECT(cudaFree(a), 1);
	EXPECT(cudaMalloc(&c, MIB), 0);
	CHECK(c != a && c != b);
	EXPECT(cudaMemsetAsync(c, 3, MIB, stream), 0);
	opened = true;
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	CHECK(graph);
	EXPECT(cudaFree(c), 0);
	EXPECT(cudaMalloc(&a, 1), 0);
	EXPECT(cudaFree(a), 0);
	EXPECT(statistic("\"blocks\""), 0);
}

static void own_context(void)
{
	void *context, *stream;
	uintptr_t a = 0, b = 0;
	EXPECT(cuCtxCreate_v2(&context, 0, 0), 0);
	EXPECT(cuStreamCreate(&stream, NON_BLOCKING), 0);
	EXPECT(cuMemAlloc_v2(&a, MIB), 0);
	opened = ran = false;
	EXPECT(cudaLaunchHostFunc(stream, wait_for_it, NULL), 0);
	EXPECT(cuMemFreeAsync(a, stream), 0);
	EXPECT(cuMemAlloc_v2(&b, MIB), 0);
	CHECK(a != b && !ran);
	opened = true;
	EXPECT(cuMemFree_v2(b), 0);
	CHECK(ran);
	EXPECT(cuCtxDestroy_v2(context), 0);
	EXPECT(cuMemAlloc_v2(&a, MIB), 0);
	EXPECT(cuMemFree_v2(a), 0);
}

static void *work(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;
	void *block[16] = {0}, *stream;
	EXPECT(cudaStreamCreateWithFlags(&stream, NON_BLOCKING), 0);
	for (int i = 0; i < 400; i++) {
		int at = (int)(rand_r(&state) % 16);
		unsigned char byte = 0;
		if (block[at]) {
			EXPECT(cudaMemcpy(&byte, block[at], 1, 2), 0);
			EXPECT(byte, at + (uintptr_t)seed);
			EXPECT(i % 3 ? cudaFree(block[at]) : cudaFreeAsync(block[at], stream), 0);
			block[at] = NULL;
		} else {
			EXPECT(cudaMalloc(&block[at], size_of((int)(rand_r(&state) % 6))), 0);
			EXPECT(cudaMemset(block[at], at + (int)(uintptr_t)seed, 1), 0);
		}
	}
	for (int i = 0; i < 16; i++)
		EXPECT(cudaFree(block[i]), 0);
	return NULL;
}

static void many_threads(void)
{
	pthread_t thread[4];
	for (uintptr_t i = 0; i < 4; i++)
		start(&thread[i], work, (void *)(i * 40 + 1));
	join_all(thread, 4);
}

static void reset(void)
{
	void *a;
	EXPECT(cudaMalloc(&a, MIB), 0);
	EXPECT(cudaDeviceReset(), 0);
	EXPECT(cudaFree(a), 1);
	contents();
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	kind = argv[1];
	contents();
	refusals();
	order();
	tags();
	captures();
	own_context();
	many_threads();
	shortage();
	reset();
	return 0;
}
