// The state that all layers share: the lock, complaints.
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/simulator.h"

struct simulator sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sim_complain(const char *format, ...)
{
	char line[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	dprintf(2, "cudasim: %s\n", line);
}

void tally(enum kind kind, int more, uint64_t bytes)
{
	sim.statistics.amounts[kind].count += (uint64_t)more;
	sim.statistics.amounts[kind].bytes += (uint64_t)more * bytes;
}

uint64_t nanoseconds(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int thread_id(void)
{
	return (int)syscall(SYS_gettid);
}
