/* What a launch costs, cuLaunchKernel with 11 arguments, and what a poll, cuStreamQuery; both bound by the loader, in
 * nanoseconds. Where the device is a real one a kernel that does nothing is launched, and waited for now and then. Run
 * it with and without the libraries in LD_PRELOAD; inturn.py does, and compares. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuCtxSynchronize(void);
extern int cuStreamQuery(void *stream);
extern int cuModuleLoadData(void **module, const void *image);
extern int cuModuleGetFunction(void **function, void *module, const char *name);
extern int cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  void *stream, void **parameters, void **extra);

static const char nothing[] = ".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void check(int code, const char *what)
{
	if (code) {
		fprintf(stderr, "gate: %s: CUresult %d\n", what, code);
		exit(1);
	}
}

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;
	return difference < 0 ? -1 : difference > 0;
}

static void launch(void *function)
{
	check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void query(void *stream)
{
	check(cuStreamQuery(stream), "cuStreamQuery");
}

/* The median of batches: what else runs on the machine does not count. */
static inline __attribute__((always_inline)) double price(void (*call)(void *), void *argument, int count)
{
	enum { BATCH = 500 }; /* calls for which the driver has room */
	int batches = count / BATCH;
	double *spent = malloc((size_t)batches * sizeof *spent);
	if (!spent)
		exit(1);
	for (int batch = 0; batch < batches; batch++) {
		double begin = now();
		for (int i = 0; i < BATCH; i++)
			call(argument);
		spent[batch] = (now() - begin) / BATCH;
		check(cuCtxSynchronize(), "cuCtxSynchronize");
	}
	qsort(spent, (size_t)batches, sizeof *spent, compare);
	double median = spent[batches / 2];
	free(spent);
	return median;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 200000;
	void *context, *module, *function;
	check(cuInit(0), "cuInit");
	check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuModuleLoadData(&module, nothing), "cuModuleLoadData");
	check(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
	price(launch, function, 10000);
	printf("%.2f cuLaunchKernel\n", price(launch, function, count));
	printf("%.2f cuStreamQuery\n", price(query, NULL, count));
	return 0;
}
