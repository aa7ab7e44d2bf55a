// A program with GPU memory that pauses and resumes once, preloaded with anything that has the common C interface, over
// the simulator. In the pause, or in the resume, it makes one driver call fail:
//   host count FUNCTION...              no failure; how often the pause and the resume call each function
//   host fail PHASE FUNCTION NTH CODE   the nth call in the phase (pause or resume) returns the code, once
// A call that reports an error is made once more, as a caller would. It prints what it sees, an event a line, for
// faults.py to judge.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int cudaMalloc(void **pointer, size_t size);
extern int cudaFree(void *pointer);
extern int cudaDeviceSynchronize(void);

static struct piece {
	size_t bytes;
	bool kept; // its contents are saved
	void *at;
} pieces[] = {
	{4 << 20, true, NULL}, {(2 << 20) + 512, true, NULL},  {64 << 10, true, NULL},
	{6 << 20, false, NULL}, {2 << 20, false, NULL},
};
enum { PIECES = sizeof pieces / sizeof *pieces };

// The driver's functions, so that looking does not pass through the library under test.
static int (*to_host)(void *, uint64_t, size_t), (*to_device)(uint64_t, const void *, size_t);
static uint64_t (*stat)(const char *), (*fired)(void);
static void (*fail)(const char *, int, int), (*clear)(void);
static int (*pause_)(const char *), (*resume)(const char *);
static void (*set_region)(bool), (*set_tag)(const char *), (*set_backup)(bool);
static const char *(*last_error)(void); // only tms has it

static int count;                    // functions to count
static char **functions;
static const char *phase = "", *function; // of the failure
static int nth, code;
static bool done;

static void find(void *library, const char *name, void *function_)
{
	*(void **)function_ = dlsym(library, name);
	if (!*(void **)function_) {
		fprintf(stderr, "host: no %s: preload a library that has the common C interface\n", name);
		_exit(3);
	}
}

static void find_all(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		fprintf(stderr, "host: %s\n", dlerror());
		_exit(3);
	}
	find(driver, "cuMemcpyDtoH_v2", &to_host);
	find(driver, "cuMemcpyHtoD_v2", &to_device);
	find(driver, "cudasim_stat", &stat);
	find(driver, "cudasim_fail", &fail);
	find(driver, "cudasim_clear_failures", &clear);
	find(driver, "cudasim_failures_fired", &fired);
	find(RTLD_DEFAULT, "tms_pause", &pause_);
	find(RTLD_DEFAULT, "tms_resume", &resume);
	find(RTLD_DEFAULT, "tms_set_interesting_region", &set_region);
	find(RTLD_DEFAULT, "tms_set_current_tag", &set_tag);
	find(RTLD_DEFAULT, "tms_set_enable_cpu_backup", &set_backup);
	*(void **)&last_error = dlsym(RTLD_DEFAULT, "tms_last_error");
}

static void ended(void)
{
	if (!done) {
		printf("ended %llu\n", (unsigned long long)fired());
		fflush(stdout);
	}
}

static void ended_by(int number)
{
	ended();
	signal(number, SIG_DFL);
	raise(number);
}

static unsigned char byte_of(size_t piece, size_t i) { return (unsigned char)(i * 31 + (i >> 9) + piece * 7 + 1); }

static void fill(size_t piece, unsigned char *buffer)
{
	for (size_t i = 0; i < pieces[piece].bytes; i++)
		buffer[i] = byte_of(piece, i);
}

static void make(void)
{
	set_region(true);
	for (size_t i = 0; i < PIECES; i++) {
		set_tag(pieces[i].kept ? "weights" : "cache");
		set_backup(pieces[i].kept);
		unsigned char *buffer = malloc(pieces[i].bytes);
		fill(i, buffer);
		if (cudaMalloc(&pieces[i].at, pieces[i].bytes) ||
		    to_device((uint64_t)pieces[i].at, buffer, pieces[i].bytes)) {
			fprintf(stderr, "host: no memory to begin with\n");
			_exit(3);
		}
		free(buffer);
	}
	cudaDeviceSynchronize();
}

static bool mapped(const struct piece *piece)
{
	unsigned char first, last;
	return to_host(&first, (uint64_t)piece->at, 1) == 0 &&
	       to_host(&last, (uint64_t)piece->at + piece->bytes - 1, 1) == 0;
}

// Whether each piece is there, and as it was or usable.
static size_t wrong(void)
{
	size_t bad = 0;
	for (size_t i = 0; i < PIECES; i++) {
		unsigned char *buffer = malloc(pieces[i].bytes), *right = malloc(pieces[i].bytes);
		fill(i, right);
		bool good = pieces[i].kept || to_device((uint64_t)pieces[i].at, right, pieces[i].bytes) == 0;
		good = good && to_host(buffer, (uint64_t)pieces[i].at, pieces[i].bytes) == 0 &&
		       memcmp(buffer, right, pieces[i].bytes) == 0;
		bad += !good;
		free(buffer);
		free(right);
	}
	return bad;
}

static void used(const char *event) { printf("%s %llu\n", event, (unsigned long long)stat("used:0")); }

static void call(const char *name, int (*pause_or_resume)(const char *))
{
	char key[128];
	uint64_t *before = calloc((size_t)count + 1, sizeof *before);
	for (int i = 0; i < count; i++) {
		snprintf(key, sizeof key, "calls:%s", functions[i]);
		before[i] = stat(key);
	}
	bool here = strcmp(phase, name) == 0;
	if (here)
		fail(function, nth, code);
	int result = pause_or_resume(NULL);
	if (here)
		printf("fired %llu\n", (unsigned long long)fired());
	clear();
	for (int i = 0; i < count; i++) {
		snprintf(key, sizeof key, "calls:%s", functions[i]);
		if (stat(key) > before[i])
			printf("calls %s %s %llu\n", name, functions[i], (unsigned long long)(stat(key) - before[i]));
	}
	free(before);
	printf("%s %d %s\n", name, result, result && last_error ? last_error() : "");
	if (result) {
		size_t there = 0;
		for (size_t i = 0; i < PIECES; i++)
			there += mapped(&pieces[i]);
		printf("mapped %zu of %d\n", there, PIECES);
		printf("%s-again %d\n", name, pause_or_resume(NULL));
	}
	used(name[0] == 'p' ? "paused" : "resumed");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	find_all();
	if (argc > 1 && strcmp(argv[1], "count") == 0) {
		count = argc - 2;
		functions = argv + 2;
	} else if (argc == 6 && strcmp(argv[1], "fail") == 0) {
		phase = argv[2];
		function = argv[3];
		nth = atoi(argv[4]);
		code = atoi(argv[5]);
	} else {
		return 2;
	}
	atexit(ended);
	for (int *number = (int[]){SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGTERM, 0}; *number; number++)
		signal(*number, ended_by);
	cudaFree(NULL);
	make();
	used("active");
	call("pause", pause_);
	call("resume", resume);
	printf("wrong %zu of %d\n", wrong(), PIECES);
	int failed = 0;
	for (size_t i = 0; i < PIECES; i++)
		failed += cudaFree(pieces[i].at) != 0;
	printf("frees-failed %d\n", failed);
	used("freed");
	done = true;
	printf("done\n");
	return 0;
}
