/* Random operations: threads with a tag each allocate, fill, check, pause, resume and free, while children
 * are forked and driver calls fail. At the end nothing is left. Called as: soak OPERATIONS SEED */
#include "host.h"

enum { THREADS = 6, HELD = 16, TRIES = 100 };

static _Atomic long operations;
static _Atomic bool stop;

/* An operation may fail, because calls are made to fail; tried again it works. */
#define UNTIL_DONE(expression)                                                                     \
	do {                                                                                       \
		int code_, tries_ = 0;                                                             \
		while ((code_ = (expression)) && ++tries_ < TRIES)                                 \
			;                                                                          \
		EXPECT(code_, 0);                                                                  \
	} while (0)

struct piece {
	void *address;
	size_t size;
	unsigned seed;
	bool backup;
};

static void allocate(struct random *r, struct piece *p, const char *tag)
{
	static const size_t scale[] = {512, 64 << 10, 3 * MIB};
	*p = (struct piece){.size = 4 + (draw(r, (unsigned)scale[draw(r, 3)]) & ~3u), .seed = draw(r, 1 << 30)};
	unsigned kind = draw(r, 4);
	p->backup = kind;
	tms_set_interesting_region(true);
	tms_set_current_tag(tag);
	tms_set_enable_cpu_backup(kind == 1 || kind == 2);
	tms_set_enable_incremental_backup(kind == 2);
	tms_set_enable_disk_backup(kind == 3);
	UNTIL_DONE(cudaMalloc(&p->address, p->size));
	tms_set_enable_cpu_backup(false);
	tms_set_enable_incremental_backup(false);
	tms_set_enable_disk_backup(false);
	tms_set_interesting_region(false);
	fill(p->address, p->size, p->seed);
}

static void *work(void *argument)
{
	struct piece held[HELD];
	unsigned count = 0;
	uintptr_t seed = (uintptr_t)argument;
	struct random r = {seed * 0x9e3779b97f4a7c15u + 1};
	char tag[32];
	snprintf(tag, sizeof tag, "soak %zu", (size_t)seed);
	while (atomic_fetch_sub(&operations, 1) > 0) {
		unsigned what = draw(&r, 10);
		if (count == 0 || (what < 5 && count < HELD)) {
			allocate(&r, &held[count++], tag);
		} else if (what < 8) {
			struct piece *p = &held[draw(&r, count)];
			CHECK(filled(p->address, p->size, p->seed));
			UNTIL_DONE(cudaFree(p->address));
			*p = held[--count];
		} else {
			UNTIL_DONE(tms_pause(tag));
			UNTIL_DONE(tms_resume(tag));
			for (unsigned i = 0; i < count; i++) {
				if (held[i].backup)
					CHECK(filled(held[i].address, held[i].size, held[i].seed));
				else
					fill(held[i].address, held[i].size, held[i].seed);
			}
		}
	}
	for (; count > 0; count--)
		UNTIL_DONE(cudaFree(held[count - 1].address));
	return NULL;
}

static void fork_a_child(void *ours)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(120);
		CHECK(tms_pause(NULL) == 3);
		CHECK(cudaFree(ours) != 0);
		_exit(0);
	}
	int status = -1;
	CHECK(waitpid(pid, &status, 0) == pid);
	EXPECT(status, 0);
}

static void *disturb(void *argument)
{
	static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemSetAccess",
		"cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuStreamCreate",
		"cuStreamDestroy", "cuLaunchKernel"};
	struct random r = {(uintptr_t)argument + 77};
	uint64_t (*fired)(void) = (uint64_t(*)(void))simulator("cudasim_failures_fired");
	uint64_t before = fired(), planned = 0;
	void *ours = pausable(MIB, "ours", false);
	for (unsigned round = 0; !atomic_load(&stop); round++) {
		if (fired() - before == planned) { /* one failure at a time */
			sim_fail(calls[draw(&r, sizeof calls / sizeof *calls)], 1 + (int)draw(&r, 20), 999);
			planned++;
		}
		if (round % 16 == 0)
			fork_a_child(ours);
		CHECK(tms_stats_json(NULL, 0) > 0);
		usleep(2000);
	}
	((void (*)(void))simulator("cudasim_clear_failures"))();
	EXPECT(cudaFree(ours), 0);
	return NULL;
}

static void play(long count, uintptr_t seed)
{
	pthread_t workers[THREADS], disturber;
	atomic_store(&operations, count);
	atomic_store(&stop, false);
	start(&disturber, disturb, (void *)seed);
	for (uintptr_t i = 0; i < THREADS; i++)
		start(&workers[i], work, (void *)(seed * THREADS + i));
	join_all(workers, THREADS);
	atomic_store(&stop, true);
	join(disturber);
	UNTIL_DONE(tms_pause(NULL)); /* finishes first what frees left undone */
	EXPECT(tms_trim(), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	long count = atol(argv[1]);
	uintptr_t seed = (uintptr_t)atol(argv[2]);
	size_t before = free_bytes();
	play(count / 10, seed);
	int open = descriptors(), running = threads();
	play(count - count / 10, seed + 1);
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(sim_stat("registrations"), 0);
	EXPECT(descriptors(), open);
	CHECK(threads() <= running + 8);
	printf("%ld operations of %d threads\n", count, THREADS);
	return 0;
}
