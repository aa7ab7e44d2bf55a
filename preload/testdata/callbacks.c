/* A progress callback may wait for a lock (Python's) whose holder is in a call of ours. It may make calls that do not
 * wait for an operation; those that do are refused. argument: device, malloc, inside, thread */
#include "host.h"

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int locked, reported, refused;
static const char *what;

static void *call_with_lock(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&host_lock);
	locked = 1;
	while (!reported)
		usleep(1000);
	if (!strcmp(what, "device")) {
		EXPECT(cudaSetDevice(1), 0);
	} else {
		void *pointer;
		EXPECT(cudaMalloc(&pointer, (size_t)1 << 40), 2);
		tms_set_interesting_region(true);
		EXPECT(cudaMalloc(&pointer, (size_t)1 << 40), 2);
		EXPECT(cudaMalloc(&pointer, MIB), 0);
		EXPECT(cudaFree(pointer), 0);
		tms_set_interesting_region(false);
	}
	pthread_mutex_unlock(&host_lock);
	return NULL;
}

static void *pause_others(void *unused)
{
	(void)unused;
	EXPECT(tms_pause("u"), 0);
	return NULL;
}

static void report(int device, const char *operation, uint64_t done, uint64_t total, void *user)
{
	(void)device, (void)operation, (void)done, (void)total, (void)user;
	if (reported++)
		return;
	if (!strcmp(what, "inside")) {
		int codes[] = {tms_pause(NULL), tms_resume("w"), tms_resume_within("w", 1), tms_trim(), tms_prepare(NULL, true)};
		for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++)
			refused += codes[i] == 801;
		CHECK(strstr(tms_last_error(), "progress callback"));
		EXPECT(tms_prepare(NULL, false), 0);
		char stats[4096];
		CHECK(tms_stats_json(stats, sizeof stats) > 0);
	} else if (!strcmp(what, "thread")) { /* which may wait: the operation holds no lock */
		pthread_t thread;
		EXPECT(pthread_create(&thread, NULL, pause_others, NULL), 0);
		EXPECT(pthread_join(thread, NULL), 0);
	} else {
		pthread_mutex_lock(&host_lock);
		pthread_mutex_unlock(&host_lock);
	}
}

int main(int argc, char **argv)
{
	what = argc > 1 ? argv[1] : "device";
	void *memory = pausable(64 * MIB, "w", true), *others = pausable(MIB, "u", true);
	fill(memory, 64 * MIB, 1);
	tms_set_progress_callback(report, NULL);
	pthread_t thread;
	bool helper = !strcmp(what, "device") || !strcmp(what, "malloc");
	if (helper) {
		EXPECT(pthread_create(&thread, NULL, call_with_lock, NULL), 0);
		while (!locked)
			usleep(100);
	}
	EXPECT(tms_pause("w"), 0);
	CHECK(reported);
	if (!strcmp(what, "inside"))
		EXPECT(refused, 5);
	if (helper)
		EXPECT(pthread_join(thread, NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, 64 * MIB, 1));
	EXPECT(cudaFree(others), 0);
	return 0;
}
