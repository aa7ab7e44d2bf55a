/* Stream-ordered memory. Called as:
 * ordered ahead|steps|repeats|turns|child|pools|current|attributes|device */
#include "host.h"
#include <sys/wait.h>

struct props { /* cudaMemPoolProps */
	int type, handle_types, location_type, location;
	void *win32;
	size_t most;
	unsigned char rest[64];
};
int cudaMemPoolCreate(void **, const struct props *);
int cudaMemPoolDestroy(void *);
int cudaMemPoolSetAttribute(void *, int, void *);
int cudaMemPoolGetAttribute(void *, int, void *);
int cudaMemPoolTrimTo(void *, size_t);
int cudaDeviceGetDefaultMemPool(void **, int);
int cudaDeviceSetMemPool(int, void *);
int cudaPointerGetAttributes(void *, const void *);
int cudaMallocFromPoolAsync(void **, size_t, void *, void *);
enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

static void *stream;
static sem_t reached;

static void wait_for_it(void *unused)
{
	(void)unused;
	while (sem_wait(&reached))
		;
}

static uint64_t attribute(void *pool, int which)
{
	uint64_t value = 0;
	EXPECT(cudaMemPoolGetAttribute(pool, which, &value), 0);
	return value;
}

/* Six tenths of the device, again and again, and the stream has done nothing yet. */
static void ahead(void)
{
	void *first = NULL, *again = NULL;
	const size_t size = free_bytes() / 10 * 6;
	EXPECT(cudaMallocAsync(&first, size, stream), 0);
	EXPECT(cudaLaunchHostFunc(stream, wait_for_it, NULL), 0);
	for (int i = 0; i < 10; i++) {
		EXPECT(cudaFreeAsync(first, stream), 0);
		EXPECT(cudaMallocAsync(&again, size, stream), 0);
		CHECK(again == first);
	}
	EXPECT(sim_stat("calls:cuMemCreate"), 1);
	EXPECT(cudaFreeAsync(first, stream), 0);
	sem_post(&reached);
	EXPECT(cudaStreamSynchronize(stream), 0);
	CHECK(free_bytes() > size); /* the default pool keeps nothing */
	EXPECT(sim_stat("handles"), 0);
}

/* Steps of equal sizes ask the driver for no memory, and for few events. */
static void steps(void)
{
	uint64_t keep = UINT64_MAX;
	void *pool = NULL, *p[8];
	EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0), 0);
	EXPECT(cudaMemPoolSetAttribute(pool, THRESHOLD, &keep), 0);
	for (int step = 0; step < 1000; step++) {
		for (int i = 0; i < 8; i++)
			EXPECT(cudaMallocAsync(&p[i], (size_t)(i % 3 + 1) << (i % 2 ? 16 : 23), stream), 0);
		for (int i = 0; i < 8; i++)
			EXPECT(cudaFreeAsync(p[i], stream), 0);
	}
	CHECK(sim_stat("calls:cuMemCreate") <= 8);
	EXPECT(sim_stat("calls:cuMemUnmap"), 0);
	CHECK(sim_stat("calls:cuEventCreate") <= 16);
	CHECK(sim_stat("calls:cuEventQuery") <= 100);
}

/* A step that repeats another asks the driver for the stream's number and for an event's record, once a pair. */
static void repeats(void)
{
	static const char *const once[] = {"calls:cuStreamGetId", "calls:cuEventRecord", "calls:cuStreamGetCtx",
					   "calls:cuMemCreate", "calls:cuEventQuery"};
	enum { STEPS = 1000, EACH = 8, KINDS = sizeof once / sizeof *once };
	uint64_t keep = UINT64_MAX, before[KINDS];
	void *pool = NULL, *p[EACH], *other = NULL, *same = NULL;
	EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0), 0);
	EXPECT(cudaMemPoolSetAttribute(pool, THRESHOLD, &keep), 0);
	for (int step = -2; step < STEPS; step++) {
		for (int i = 0; step == 0 && i < KINDS; i++)
			before[i] = sim_stat(once[i]);
		for (int i = 0; i < EACH; i++)
			EXPECT(cudaMallocAsync(&p[i], (size_t)(i % 3 + 1) << (i % 2 ? 16 : 23), stream), 0);
		for (int i = 0; i < EACH; i++)
			EXPECT(cudaFreeAsync(p[i], stream), 0);
	}
	EXPECT(sim_stat(once[0]) - before[0], STEPS * EACH);
	EXPECT(sim_stat(once[1]) - before[1], STEPS * EACH);
	for (int i = 2; i < KINDS; i++)
		EXPECT(sim_stat(once[i]) - before[i], 0);
	/* Free memory is free in statistics, to a free of another kind, and to another stream, tag or size. */
	EXPECT(attribute(pool, USED), 0);
	EXPECT(cudaMallocAsync(&p[0], 8 * MIB, stream), 0);
	EXPECT(cudaFreeAsync(p[0], stream), 0);
	EXPECT(cudaFreeAsync(p[0], stream), 1);
	EXPECT(cudaMallocAsync(&p[0], 8 * MIB, stream), 0);
	EXPECT(cudaFreeAsync(p[0], stream), 0);
	EXPECT(cudaFree(p[0]), 1);
	EXPECT(cudaStreamCreate(&other), 0);
	for (int i = 0; i < 3; i++) {
		EXPECT(cudaMallocAsync(&p[i], 8 * MIB, stream), 0);
		EXPECT(cudaFreeAsync(p[i], i == 1 ? other : stream), 0);
	}
	EXPECT(cudaLaunchHostFunc(stream, wait_for_it, NULL), 0);
	EXPECT(cudaMallocAsync(&p[0], 8 * MIB, stream), 0);
	EXPECT(cudaFreeAsync(p[0], stream), 0);
	tms_set_current_tag("another");
	EXPECT(cudaMallocAsync(&same, 8 * MIB, stream), 0);
	CHECK(same != p[0]);
	tms_set_current_tag(NULL);
	EXPECT(cudaMallocAsync(&same, 8 * MIB, stream), 0);
	CHECK(same == p[0]);
	/* Paused memory serves no allocation, and a free finds it. */
	EXPECT(cudaMallocAsync(&p[1], 8 * MIB, stream), 0);
	EXPECT(cudaFreeAsync(p[1], stream), 0);
	sem_post(&reached);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(cudaMallocAsync(&p[2], 8 * MIB, stream), 0);
	fill(p[2], 8 * MIB, 3);
	EXPECT(cudaFreeAsync(same, stream), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(p[2], 8 * MIB, 3));
	EXPECT(cudaFreeAsync(p[2], stream), 0);
}

/* In turns: threads that use memory, and one that pauses it. They allocate and free at any time. */
static pthread_rwlock_t in_use = PTHREAD_RWLOCK_INITIALIZER;
static atomic_int at_work;
static void *left[64];

static void *work_in_turns(void *number)
{
	enum { EACH = 4 };
	void *mine = NULL, *p[EACH];
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaStreamCreate(&mine), 0);
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(true);
	for (int round = 0; round < 1000; round++) {
		for (int i = 0; i < EACH; i++) {
			EXPECT(cudaMallocAsync(&p[i], i % 2 ? 4096 : 2 * MIB, mine), 0);
			pthread_rwlock_rdlock(&in_use);
			*(uint64_t *)p[i] = (uintptr_t)number << 32 | (unsigned)round << 8 | (unsigned)i;
			pthread_rwlock_unlock(&in_use);
		}
		for (int i = 0; i < EACH; i++) {
			pthread_rwlock_rdlock(&in_use);
			CHECK(*(uint64_t *)p[i] == ((uintptr_t)number << 32 | (unsigned)round << 8 | (unsigned)i));
			pthread_rwlock_unlock(&in_use);
			if (i == 1 && round % 7 == 0) { /* another thread frees it */
				void *other = __atomic_exchange_n(&left[round % 64], p[i], __ATOMIC_SEQ_CST);
				if (other)
					EXPECT(cudaFreeAsync(other, mine), 0);
			} else {
				EXPECT(cudaFreeAsync(p[i], mine), 0);
			}
		}
	}
	at_work--;
	return NULL;
}

static void turns(void)
{
	pthread_t thread[3];
	at_work = 3;
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&thread[i], NULL, work_in_turns, (void *)(uintptr_t)(i + 1)) == 0);
	for (int cycle = 0; at_work > 0 || cycle < 3; cycle++) {
		pthread_rwlock_wrlock(&in_use);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(tms_resume(NULL), 0);
		pthread_rwlock_unlock(&in_use);
		sched_yield();
	}
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < 64; i++)
		if (left[i])
			EXPECT(cudaFreeAsync(left[i], stream), 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	becomes("handles", 0);
}

/* After a fork the child gets errors. */
static void child(void)
{
	void *p = NULL;
	int status = 0;
	for (int i = 0; i < 3; i++) {
		EXPECT(cudaMallocAsync(&p, 8 * MIB, stream), 0);
		EXPECT(cudaFreeAsync(p, stream), 0);
	}
	void *live = NULL;
	EXPECT(cudaMallocAsync(&live, 8 * MIB, stream), 0);
	EXPECT(cudaMallocAsync(&p, 8 * MIB, stream), 0);
	EXPECT(cudaFreeAsync(p, stream), 0);
	pid_t forked = fork();
	if (forked == 0)
		_exit(cudaFreeAsync(live, stream) == 3 && cudaMallocAsync(&p, 8 * MIB, stream) == 3 ? 0 : 1);
	CHECK(waitpid(forked, &status, 0) == forked && status == 0);
	EXPECT(cudaFreeAsync(live, stream), 0);
}

static bool is_pausable_from(void *pool)
{
	void *pointer = NULL;
	uint64_t handles = sim_stat("handles");
	EXPECT(pool ? cudaMallocFromPoolAsync(&pointer, 8 * MIB, pool, stream) : cudaMallocAsync(&pointer, 8 * MIB, stream), 0);
	bool ours = sim_stat("handles") > handles;
	EXPECT(cudaFreeAsync(pointer, stream), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	becomes("handles", handles);
	return ours;
}

/* Memory that must be more than a device's own comes from its pool. */
static void pools(void)
{
	void *plain = NULL, *shared = NULL, *standard = NULL, *bounded = NULL, *decompressing = NULL;
	EXPECT(cudaDeviceGetDefaultMemPool(&standard, 0), 0);
	EXPECT(cudaMemPoolCreate(&plain, &(struct props){1, 0, 1, 0, NULL, 0, {0}}), 0);
	EXPECT(cudaMemPoolCreate(&shared, &(struct props){1, POSIX_FD, 1, 0, NULL, 0, {0}}), 0);
	EXPECT(cudaMemPoolCreate(&bounded, &(struct props){1, 0, 1, 0, NULL, 64 * MIB, {0}}), 0);
	EXPECT(cudaMemPoolCreate(&decompressing, &(struct props){1, 0, 1, 0, NULL, 0, {2}}), 0);
	CHECK(is_pausable_from(standard));
	CHECK(is_pausable_from(plain));
	CHECK(is_pausable_from(decompressing)); /* the device has no engine for that */
	CHECK(!is_pausable_from(shared));
	CHECK(!is_pausable_from(bounded));
	EXPECT(cudaMemPoolDestroy(plain), 0);
	EXPECT(cudaMemPoolDestroy(shared), 0);
	EXPECT(cudaMemPoolDestroy(decompressing), 0);
}

/* cudaMallocAsync uses the current pool. */
static void current(void)
{
	void *shared = NULL, *standard = NULL;
	EXPECT(cudaMemPoolCreate(&shared, &(struct props){1, POSIX_FD, 1, 0, NULL, 0, {0}}), 0);
	EXPECT(cudaDeviceGetDefaultMemPool(&standard, 0), 0);
	CHECK(is_pausable_from(NULL));
	EXPECT(cudaDeviceSetMemPool(0, shared), 0);
	CHECK(!is_pausable_from(NULL));
	EXPECT(cudaDeviceSetMemPool(0, standard), 0);
	CHECK(is_pausable_from(NULL));
}

/* A pool tells of pausable memory as of its own, and keeps what its threshold says. */
static void attributes(void)
{
	void *pool = NULL, *pointer = NULL;
	uint64_t keep = UINT64_MAX, none = 0;
	EXPECT(cudaDeviceGetDefaultMemPool(&pool, 0), 0);
	EXPECT(attribute(pool, USED), 0);
	EXPECT(cudaMemPoolSetAttribute(pool, THRESHOLD, &keep), 0);
	EXPECT(cudaMallocAsync(&pointer, 8 * MIB, stream), 0);
	EXPECT(attribute(pool, USED), 8 * MIB);
	EXPECT(cudaFreeAsync(pointer, stream), 0);
	EXPECT(cudaStreamSynchronize(stream), 0);
	EXPECT(attribute(pool, USED), 0);
	EXPECT(attribute(pool, RESERVED), 8 * MIB);
	EXPECT(attribute(pool, USED_HIGH), 8 * MIB);
	EXPECT(cudaMemPoolSetAttribute(pool, USED_HIGH, &none), 0);
	EXPECT(attribute(pool, USED_HIGH), 0);
	EXPECT(cudaMemPoolTrimTo(pool, 0), 0);
	EXPECT(attribute(pool, RESERVED), 0);
	EXPECT(attribute(pool, RESERVED_HIGH), 8 * MIB);
	EXPECT(sim_stat("handles"), 0);
	/* A pause takes blocks that are not in use. */
	EXPECT(cudaMallocAsync(&pointer, 8 * MIB, stream), 0);
	EXPECT(cudaFreeAsync(pointer, stream), 0);
	EXPECT(tms_pause(NULL), 0);
	becomes("handles", 0);
	EXPECT(tms_resume(NULL), 0);
}

static int device_of(const void *pointer)
{
	struct {
		int type, device;
		void *device_pointer, *host_pointer;
		long reserved[8];
	} of = {0};
	EXPECT(cudaPointerGetAttributes(&of, pointer), 0);
	return of.device;
}

/* Memory is on the device of the pool, or of the stream. */
static void device(void)
{
	void *pool = NULL, *from_pool = NULL, *from_stream = NULL, *there = NULL;
	EXPECT(cudaSetDevice(1), 0);
	EXPECT(cudaStreamCreate(&there), 0);
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaMemPoolCreate(&pool, &(struct props){1, 0, 1, 1, NULL, 0, {0}}), 0);
	EXPECT(cudaMallocFromPoolAsync(&from_pool, 8 * MIB, pool, stream), 0);
	EXPECT(device_of(from_pool), 1);
	EXPECT(cudaMallocAsync(&from_stream, 8 * MIB, there), 0);
	EXPECT(device_of(from_stream), 1);
	EXPECT(cudaFreeAsync(from_stream, there), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	sem_init(&reached, 0, 0);
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	tms_set_interesting_region(true);
	if (!strcmp(argv[1], "ahead"))
		ahead();
	else if (!strcmp(argv[1], "steps"))
		steps();
	else if (!strcmp(argv[1], "repeats"))
		repeats();
	else if (!strcmp(argv[1], "turns"))
		turns();
	else if (!strcmp(argv[1], "child"))
		child();
	else if (!strcmp(argv[1], "pools"))
		pools();
	else if (!strcmp(argv[1], "current"))
		current();
	else if (!strcmp(argv[1], "attributes"))
		attributes();
	else if (!strcmp(argv[1], "device"))
		device();
	else
		return 2;
	return 0;
}
