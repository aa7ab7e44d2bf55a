/* What preloading a library adds to starting and ending a program: microseconds from spawning
 * /bin/true to its end, the libraries in turn. Called as: start RUNS LIBRARY... */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int runs = argc > 2 ? atoi(argv[1]) : 0, libraries = argc - 1; /* the first: none */
	if (runs < 1) {
		fprintf(stderr, "usage: start RUNS LIBRARY...\n");
		return 2;
	}
	double *times = calloc((size_t)libraries * (size_t)runs, sizeof *times);
	for (int run = 0; run < runs; run++) {
		for (int i = 0; i < libraries; i++) {
			char preload[4096];
			snprintf(preload, sizeof preload, "LD_PRELOAD=%s", i ? argv[i + 1] : "");
			char *environment[] = {preload, NULL}, *arguments[] = {"true", NULL};
			pid_t pid;
			int status = -1;
			double begin = now();
			if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment) != 0 ||
			    waitpid(pid, &status, 0) != pid || status != 0) {
				fprintf(stderr, "start: /bin/true failed under %s\n", preload);
				return 1;
			}
			times[i * runs + run] = now() - begin;
		}
	}
	double plain = 0;
	for (int i = 0; i < libraries; i++) {
		double *own = times + i * runs;
		qsort(own, (size_t)runs, sizeof *own, ascending);
		double median = own[runs / 2];
		plain = i ? plain : median;
		const char *name = i ? strrchr(argv[i + 1], '/') : NULL;
		printf("%-44s %8.1f us  %+8.1f  x%.3f  quartiles %.1f to %.1f\n",
		       i == 0 ? "no preload" : name ? name + 1 : argv[i + 1], median, median - plain, median / plain,
		       own[runs / 4], own[runs * 3 / 4]);
	}
	free(times);
	return 0;
}
