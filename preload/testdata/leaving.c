/* The process ends while other threads are inside: by exec, exit, return, quick_exit, or with an atexit handler that
 * frees when libcudart is already gone. Called as: leaving HOW */
#include "host.h"

static _Atomic int inside;
static void *kept;

static void *work(void *argument)
{
	uintptr_t id = (uintptr_t)argument;
	char tag[] = {(char)('a' + id), 0};
	for (;;) {
		void *p = NULL;
		tms_set_interesting_region(true);
		tms_set_current_tag(tag);
		tms_set_enable_cpu_backup(id % 2);
		if (cudaMalloc(&p, MIB) == 0) {
			tms_pause(tag);
			tms_resume(tag);
			cudaFree(p);
		}
		atomic_fetch_add(&inside, 1);
	}
	return NULL;
}

static void last(void)
{
	/* Runs after everything registered later, libcudart's teardown included. */
	cudaFree(kept);
	tms_pause(NULL);
	tms_set_interesting_region(true);
	void *p = NULL;
	cudaMalloc(&p, 100);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	const char *how = argv[1];
	if (strcmp(how, "atexit") == 0)
		EXPECT(atexit(last), 0);
	kept = pausable(MIB, "kept", true);
	pthread_t thread;
	for (uintptr_t i = 0; i < 4; i++)
		start(&thread, work, (void *)i);
	AWAIT(atomic_load(&inside) >= 8);
	usleep((unsigned)getpid() % 500);
	if (strcmp(how, "exec") == 0)
		execl("/bin/true", "/bin/true", NULL);
	else if (strcmp(how, "exit") == 0)
		exit(0);
	else if (strcmp(how, "quick_exit") == 0)
		quick_exit(0);
	return 0;
}
