// What a number of segments, tags or sets costs: run preloaded with libtms.so, over the simulator.
//   growth segments COUNT BYTES KEPT   cudaMalloc of all, pause, resume, cudaFree of all; KEPT 1 saves contents
//   growth sets COUNT                  sets of one granule with a name each: making, opening, listing by the keeper's
//                                    client, closing; ends when stdin does
//   growth tags COUNT                  a tag for each segment of 4 KiB, or nothing; ends when stdin does
// Prints seconds, a step a line. "segments" prints processor time: on a busy machine a step of a second is interrupted,
// a step of a millisecond is not, and so other times would not compare.
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../preload/tms.h"

extern int cudaMalloc(void **pointer, size_t size);
extern int cudaFree(void *pointer);

static double begun;
static clockid_t measure = CLOCK_MONOTONIC;

static double now(void)
{
	struct timespec t;
	clock_gettime(measure, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void begin(void) { begun = now(); }

static void end(const char *step)
{
	printf("%s %.9f\n", step, now() - begun);
	fflush(stdout);
}

static void check(int code, const char *what)
{
	if (code) {
		fprintf(stderr, "growth: %s: %d %s\n", what, code, tms_last_error());
		exit(1);
	}
}

static void segments(size_t count, size_t bytes, bool kept)
{
	void **all = calloc(count, sizeof *all);
	measure = CLOCK_PROCESS_CPUTIME_ID;
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(kept);
	void *first;
	check(cudaMalloc(&first, bytes), "cudaMalloc"); // the library starts
	begin();
	for (size_t i = 0; i < count; i++)
		check(cudaMalloc(&all[i], bytes), "cudaMalloc");
	end("malloc");
	begin();
	check(tms_pause(NULL), "tms_pause");
	end("pause");
	begin();
	check(tms_resume(NULL), "tms_resume");
	end("resume");
	begin();
	for (size_t i = 0; i < count; i++)
		check(cudaFree(all[i]), "cudaFree");
	end("free");
}

static void wait_for_end(void)
{
	printf("ready 0\n");
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
}

static void sets(size_t count)
{
	char name[32];
	tms_kept **all = calloc(count, sizeof *all);
	check(cudaFree(NULL), "cudaFree");
	begin();
	for (size_t i = 0; i < count; i++) {
		void *address;
		snprintf(name, sizeof name, "set %zu", i);
		check(tms_kept_create(&all[i], name, 0), "tms_kept_create");
		check(tms_kept_add(all[i], 4096, &address), "tms_kept_add");
		check(tms_kept_seal(all[i], "", 0), "tms_kept_seal");
	}
	end("publish");
	begin();
	for (size_t i = 0; i < count; i++)
		check(tms_kept_close(all[i]), "tms_kept_close");
	end("close");
	begin();
	for (size_t i = 0; i < count; i++) {
		snprintf(name, sizeof name, "set %zu", i);
		check(tms_kept_open(&all[i], name), "tms_kept_open");
		check(tms_kept_attach(all[i]), "tms_kept_attach");
	}
	end("open and attach");
	wait_for_end();
}

static void tags(size_t count)
{
	char name[32];
	tms_set_interesting_region(true);
	for (size_t i = 0; i < count; i++) {
		void *at;
		snprintf(name, sizeof name, "tag %zu", i);
		tms_set_current_tag(name);
		check(cudaMalloc(&at, 4096), "cudaMalloc");
	}
	wait_for_end();
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "segments") == 0)
		segments(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), atoi(argv[4]) != 0);
	else if (argc == 3 && strcmp(argv[1], "sets") == 0)
		sets(strtoull(argv[2], NULL, 0));
	else if (argc == 3 && strcmp(argv[1], "tags") == 0)
		tags(strtoull(argv[2], NULL, 0));
	else
		return 2;
	return 0;
}
