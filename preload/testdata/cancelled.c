/* A thread with a cancellation pending makes the process's first allocation in a region: it ends afterwards, and other
 * threads can allocate. */
#include "host.h"

static void *doomed(void *unused)
{
	EXPECT(pthread_cancel(pthread_self()), 0);
	void *pointer = pausable(4096, "doomed", true);
	EXPECT(cudaFree(pointer), 0);
	pthread_testcancel();
	CHECK(!"reached");
	return unused;
}

static void *other(void *unused)
{
	EXPECT(cudaFree(pausable(4096, "other", true)), 0);
	return unused;
}

int main(void)
{
	pthread_t thread;
	void *result = NULL;
	alarm(120);
	EXPECT(cudaFree(NULL), 0);
	start(&thread, doomed, NULL);
	EXPECT(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	on_a_thread(other, NULL);
	PAUSE_AND_RESUME(NULL);
	return 0;
}
