// What a layout of memory costs: run preloaded with anything that has the common C interface.
//   layout cycles COUNT BYTES CYCLES   pause and resume of COUNT segments, no backup: milliseconds
//   layout malloc COUNT BYTES REGION   cudaMalloc of COUNT pieces, in a region (1) or not (0): microseconds
//   layout threads THREADS BYTES REGION SECONDS   pairs of cudaMalloc and cudaFree per second in all
//   layout pausing THREADS BYTES REGION CYCLES    while they do that, or with BYTES 0 only keep processors busy:
//                                                 milliseconds of a pause and a resume of 1024 x 2 MiB of
//                                                 another tag, and of their slowest call
// Prints numbers, one line each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern int cudaMalloc(void **pointer, size_t size);
extern int cudaFree(void *pointer);
extern int cudaMemset(void *pointer, int value, size_t size);
extern int cudaDeviceSynchronize(void);
extern int cudaMemGetInfo(size_t *bytes, size_t *total);

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(int code, const char *what)
{
	if (code) {
		fprintf(stderr, "layout: %s: cudaError %d\n", what, code);
		exit(1);
	}
}

static void *symbol(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	if (!found) {
		fprintf(stderr, "layout: no %s: preload a library that has it\n", name);
		exit(1);
	}
	return found;
}

static void region(bool on)
{
	void (*set)(bool);
	*(void **)&set = on ? symbol("tms_set_interesting_region") : dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
	if (set)
		set(on);
}

static void cycles(size_t count, size_t bytes, int repetitions)
{
	int (*pause_)(const char *), (*resume)(const char *);
	*(void **)&pause_ = symbol("tms_pause");
	*(void **)&resume = symbol("tms_resume");
	void **pointers = calloc(count, sizeof *pointers);
	region(true);
	for (size_t i = 0; i < count; i++)
		check(cudaMalloc(&pointers[i], bytes), "cudaMalloc");
	for (size_t i = 0; i < count; i++)
		check(cudaMemset(pointers[i], 1, bytes), "cudaMemset");
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	for (int i = 0; i < repetitions; i++) {
		double a = now();
		check(pause_(NULL), "tms_pause");
		double b = now();
		usleep(500000); // the driver scrubs what it was given back
		double c = now();
		check(resume(NULL), "tms_resume");
		double d = now();
		for (size_t k = 0; k < count; k++)
			check(cudaMemset(pointers[k], 1, 4096), "cudaMemset after a resume");
		check(cudaDeviceSynchronize(), "the device after a resume");
		printf("%.3f %.3f\n", (b - a) * 1e3, (d - c) * 1e3);
	}
}

static void mallocs(size_t count, size_t bytes, bool on)
{
	void **pointers = calloc(count, sizeof *pointers);
	size_t before, after, total;
	region(on);
	check(cudaMalloc(&pointers[0], bytes), "cudaMalloc"); // warm
	check(cudaFree(pointers[0]), "cudaFree");
	check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
	double a = now();
	for (size_t i = 0; i < count; i++)
		check(cudaMalloc(&pointers[i], bytes), "cudaMalloc");
	double b = now();
	check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
	double c = now();
	for (size_t i = 0; i < count; i++)
		check(cudaFree(pointers[i]), "cudaFree");
	double d = now();
	printf("%.3f %.3f %.1f\n", (b - a) * 1e6 / (double)count, (d - c) * 1e6 / (double)count,
	       (double)(before - after) / (1 << 20));
}

static atomic_bool stop, timed;
static _Atomic double slowest[256]; // seconds, by thread
static size_t thread_bytes;
static bool thread_region;

static long pairs[256];

static void *hammer(void *thread)
{
	long i = (long)thread;
	region(thread_region);
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		void *pointer;
		if (thread_bytes == 0)
			continue;
		bool clocked = atomic_load_explicit(&timed, memory_order_relaxed);
		double a = clocked ? now() : 0;
		check(cudaMalloc(&pointer, thread_bytes), "cudaMalloc");
		double b = clocked ? now() : 0;
		check(cudaFree(pointer), "cudaFree");
		double longer = clocked ? fmax(b - a, now() - b) : 0;
		if (longer > atomic_load_explicit(&slowest[i], memory_order_relaxed))
			atomic_store_explicit(&slowest[i], longer, memory_order_relaxed);
		pairs[i]++;
	}
	return NULL;
}

static pthread_t thread[256];

// One that stays: what small ones share would else be made and unmade whenever no thread has any.
static void stay(size_t bytes, bool on)
{
	void *pointer;
	region(on);
	if (bytes > 0)
		check(cudaMalloc(&pointer, bytes), "cudaMalloc");
	region(false);
}

static void begin_threads(int count, size_t bytes, bool on)
{
	if (count < 0 || count > 256)
		exit(2);
	thread_bytes = bytes;
	thread_region = on;
	for (long i = 0; i < count; i++)
		check(pthread_create(&thread[i], NULL, hammer, (void *)i), "pthread_create");
}

static long end_threads(int count)
{
	long all = 0;
	atomic_store(&stop, true);
	for (int i = 0; i < count; i++) {
		pthread_join(thread[i], NULL);
		all += pairs[i];
	}
	return all;
}

static void threads(int count, size_t bytes, bool on, double seconds)
{
	stay(bytes, on);
	double begin = now();
	begin_threads(count, bytes, on);
	usleep((useconds_t)(seconds * 1e6));
	long all = end_threads(count);
	printf("%.0f\n", (double)all / (now() - begin));
}

static void pausing(int count, size_t bytes, bool on, int repetitions)
{
	int (*pause_)(const char *), (*resume)(const char *);
	void (*tag)(const char *);
	*(void **)&pause_ = symbol("tms_pause");
	*(void **)&resume = symbol("tms_resume");
	*(void **)&tag = symbol("tms_set_current_tag");
	stay(bytes, on);
	tag("paused");
	region(true);
	for (int i = 0; i < 1024; i++) {
		void *pointer;
		check(cudaMalloc(&pointer, 2 << 20), "cudaMalloc");
	}
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	begin_threads(count, bytes, on);
	usleep(100000);
	for (int i = 0; i < repetitions; i++) {
		for (int k = 0; k < count; k++)
			atomic_store(&slowest[k], 0);
		atomic_store(&timed, true);
		double a = now();
		check(pause_("paused"), "tms_pause");
		double b = now();
		check(resume("paused"), "tms_resume");
		double c = now(), most = 0;
		atomic_store(&timed, false);
		usleep(100000);
		for (int k = 0; k < count; k++)
			most = fmax(most, atomic_load(&slowest[k]));
		printf("%.3f %.3f %.3f\n", (b - a) * 1e3, (c - b) * 1e3, most * 1e3);
	}
	end_threads(count);
}

int main(int argc, char **argv)
{
	check(cudaFree(NULL), "starting CUDA");
	if (argc == 5 && strcmp(argv[1], "cycles") == 0)
		cycles(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), atoi(argv[4]));
	else if (argc == 5 && strcmp(argv[1], "malloc") == 0)
		mallocs(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), atoi(argv[4]) != 0);
	else if (argc == 6 && strcmp(argv[1], "threads") == 0)
		threads(atoi(argv[2]), strtoull(argv[3], NULL, 0), atoi(argv[4]) != 0, atof(argv[5]));
	else if (argc == 6 && strcmp(argv[1], "pausing") == 0)
		pausing(atoi(argv[2]), strtoull(argv[3], NULL, 0), atoi(argv[4]) != 0, atoi(argv[5]));
	else
		return 2;
	return 0;
}
