/* What steps.py is, for programs in C: how long they run, and what they say of it. */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t digest = 14695981039346656037u; /* FNV-1a */

static inline void note(const void *data, size_t size)
{
	const unsigned char *bytes = (const unsigned char *)data;
	for (size_t i = 0; i < size; i++)
		digest = (digest ^ bytes[i]) * 1099511628211u;
}

static inline int goes_on(int number, int steps)
{
	struct pollfd input = {0, POLLIN, 0};
	return steps ? number < steps : poll(&input, 1, 0) == 0;
}

static inline void ready(size_t taken)
{
	printf("ready %zu\n", taken);
	fflush(stdout);
}

static inline int end(int number)
{
	printf("steps %d\ndigest %016llx\n", number, (unsigned long long)digest);
	return fflush(stdout) != 0;
}

#define CHECK(call)                                                                                \
	do {                                                                                       \
		int code_ = (int)(call);                                                           \
		if (code_ != 0) {                                                                  \
			fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, code_);      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)
