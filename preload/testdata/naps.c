/* The library starts while one of its threads never gets a heap, on a kernel whose naps take 10 ms at least. */
#include "host.h"

enum { COARSE = 10000000 /* ns */, MOST = 1000 };
static _Atomic int naps, begun;
static _Atomic bool done;

int nanosleep(const struct timespec *time, struct timespec *left)
{
	struct timespec coarse = {.tv_nsec = COARSE};
	CHECK(++naps < MOST);
	return (int)syscall(SYS_nanosleep, time->tv_sec == 0 && time->tv_nsec < COARSE ? &coarse : time, left);
}

/* Each thread of the library comes here before it gets its heap. */
int sched_setscheduler(pid_t thread, int policy, const struct sched_param *parameters)
{
	(void)thread, (void)policy, (void)parameters;
	if (begun++ == 0)
		AWAIT(done);
	return 0;
}

int main(void)
{
	pausable(MIB, "memory", true);
	CHECK(begun > 1);
	CHECK(naps > 0);
	done = true;
	return 0;
}
