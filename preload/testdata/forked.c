/* A child of a process that used pausable memory gets an error from every call, and never hangs; a child of one that
 * did not can use such memory itself. */
#include "host.h"

#include <stdatomic.h>

static void every_call(void *ours)
{
	void *pointer = NULL;
	alarm(20);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 100), 3);
	CHECK(strstr(tms_last_error(), "fork"));
	EXPECT(cudaFree(ours), 3);
	EXPECT(tms_pause(NULL), 3);
	EXPECT(tms_resume(NULL), 3);
	CHECK(!tms_get_cpu_backup_pointer(ours, 1));
	CHECK(!tms_torch_malloc(10, 0, NULL));
	tms_torch_free(ours, 10, 0, NULL);
	CHECK(tms_stats_json(NULL, 0) > 0);
	tms_set_interesting_region(false);
	EXPECT(cudaMalloc(&pointer, 100), 3); /* CUDA's own answer */
	_exit(0);
}

static void expect_clean_exit(pid_t pid)
{
	int status = -1;
	EXPECT(waitpid(pid, &status, 0), pid);
	EXPECT(status, 0);
}

static void *pause_and_resume(void *stop)
{
	while (!atomic_load((_Atomic bool *)stop)) {
		EXPECT(tms_pause("busy"), 0);
		EXPECT(tms_resume("busy"), 0);
	}
	return NULL;
}

int main(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		alarm(20);
		void *own = pausable(MIB, "child", true);
		fill(own, MIB, 1);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(own, MIB, 1));
		_exit(0);
	}
	expect_clean_exit(pid);

	void *ours = pausable(MIB, "parent", true);
	for (int i = 0; i < 100; i++) {
		if ((pid = fork()) == 0)
			every_call(ours);
		expect_clean_exit(pid);
	}

	/* While another thread is in the middle of a pause or resume. */
	_Atomic bool stop = false;
	pthread_t thread;
	void *busy = pausable(16 * MIB, "busy", true);
	EXPECT(pthread_create(&thread, NULL, pause_and_resume, &stop), 0);
	for (int i = 0; i < 100; i++) {
		if ((pid = fork()) == 0)
			every_call(ours);
		expect_clean_exit(pid);
	}
	atomic_store(&stop, true);
	EXPECT(pthread_join(thread, NULL), 0);
	EXPECT(cudaFree(busy), 0);
	EXPECT(cudaFree(ours), 0);
	return 0;
}
