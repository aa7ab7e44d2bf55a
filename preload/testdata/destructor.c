/* A thread's last calls come from destructors of its keys, in any order: for each of them the thread's state in the
 * library is there, and no memory is written that the library has freed. */
#include "host.h"

static pthread_key_t before, after;

static void fail(void)
{
	FAILS(tms_resume_within(NULL, -1), 1, "-1 is no number of seconds");
}

/* These allocations are likely to get what the library freed. */
static void write_elsewhere(void *round)
{
	char *mine[64];
	for (int i = 0; i < 64; i++) {
		mine[i] = malloc(1024);
		CHECK(mine[i]);
		memset(mine[i], 'x', 1024);
	}
	fail();
	for (int i = 0; i < 64; i++) {
		for (int j = 0; j < 1024; j++)
			CHECK(mine[i][j] == 'x');
		free(mine[i]);
	}
	EXPECT(cudaFree(pausable(2 * MIB, "late", false)), 0);
	fail();
	if ((long)round < 5) {
		EXPECT(pthread_setspecific(before, (char *)round + 1), 0);
		EXPECT(pthread_setspecific(after, (char *)round + 1), 0);
	}
}

static void *work(void *used)
{
	EXPECT(pthread_setspecific(before, (void *)1), 0);
	EXPECT(pthread_setspecific(after, (void *)1), 0);
	fail();
	if (used)
		EXPECT(cudaFree(pausable(2 * MIB, "thread", false)), 0);
	return NULL;
}

int main(void)
{
	EXPECT(pthread_key_create(&before, write_elsewhere), 0);
	fail();
	EXPECT(pthread_key_create(&after, write_elsewhere), 0);
	for (int i = 0; i < 200; i++) {
		on_a_thread(work, i % 2 ? &before : NULL);
	}
	return 0;
}
