/* What the driver charges for each handle of a pause and a resume, call by call, and what calls over a range
 * of neighbouring mappings save: cuMemSetAccess once, cuMemUnmap once. handles [GIB [MIB...]] */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
	int type, handle_types, location_type, location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
} properties;
typedef struct {
	int location_type, location, flags;
} access_of;

static void *driver;
#define CALL(name, ...)                                                                                    \
	do {                                                                                               \
		static int (*function)();                                                                  \
		if (!function && !(function = (int (*)())dlsym(driver, #name))) {                          \
			fprintf(stderr, "the driver has no %s\n", #name);                                  \
			exit(1);                                                                           \
		}                                                                                          \
		int code = function(__VA_ARGS__);                                                          \
		if (code) {                                                                                \
			fprintf(stderr, "%s failed with %d\n", #name, code);                               \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

enum { CREATE, MAP, ACCESS, UNMAP, RELEASE, STEPS, ROUNDS = 5 };

/* One cycle over count handles of size bytes each; least[] keeps the shortest time of each step in us. */
static void cycle(uintptr_t base, size_t size, size_t count, uint64_t *handles, int ranges, double *least)
{
	const properties memory = {.type = 1, .location_type = 1};
	const access_of reach = {1, 0, 3};
	double at[STEPS + 1];
	at[CREATE] = now();
	for (size_t i = 0; i < count; i++)
		CALL(cuMemCreate, &handles[i], size, &memory, 0ull);
	at[MAP] = now();
	for (size_t i = 0; i < count; i++)
		CALL(cuMemMap, base + i * size, size, (size_t)0, handles[i], 0ull);
	at[ACCESS] = now();
	for (size_t i = 0; i < (ranges ? 1 : count); i++)
		CALL(cuMemSetAccess, base + i * size, ranges ? count * size : size, &reach, (size_t)1);
	at[UNMAP] = now();
	for (size_t i = 0; i < (ranges ? 1 : count); i++)
		CALL(cuMemUnmap, base + i * size, ranges ? count * size : size);
	at[RELEASE] = now();
	for (size_t i = 0; i < count; i++)
		CALL(cuMemRelease, handles[i]);
	at[STEPS] = now();
	for (int s = 0; s < STEPS; s++)
		if (at[s + 1] - at[s] < least[s])
			least[s] = at[s + 1] - at[s];
}

static void measure(size_t total, size_t size)
{
	size_t count = total / size;
	uint64_t *handles = calloc(count, sizeof *handles);
	uintptr_t base;
	double least[2][STEPS], sum[2][2];
	CALL(cuMemAddressReserve, &base, count * size, (size_t)0, (uintptr_t)0, 0ull);
	for (int ranges = 0; ranges < 2; ranges++)
		for (int s = 0; s < STEPS; s++)
			least[ranges][s] = 1e18;
	for (int round = 0; round < ROUNDS; round++)
		for (int ranges = 0; ranges < 2; ranges++)
			cycle(base, size, count, handles, ranges, least[ranges]);
	for (int ranges = 0; ranges < 2; ranges++) {
		double *l = least[ranges];
		sum[ranges][0] = l[UNMAP] + l[RELEASE];
		sum[ranges][1] = l[CREATE] + l[MAP] + l[ACCESS];
		printf("%5zu MiB x %5zu %-6s us a handle: create %6.1f map %6.1f access %6.1f unmap %6.1f release %6.1f; "
		       "pause %6.1f ms, resume %6.1f ms",
		       size >> 20, count, ranges ? "ranges" : "each", l[CREATE] / (double)count, l[MAP] / (double)count,
		       l[ACCESS] / (double)count, l[UNMAP] / (double)count, l[RELEASE] / (double)count,
		       sum[ranges][0] / 1e3, sum[ranges][1] / 1e3);
		if (ranges)
			printf(" (x%.2f, x%.2f)", sum[1][0] / sum[0][0], sum[1][1] / sum[0][1]);
		putchar('\n');
	}
	CALL(cuMemAddressFree, base, count * size);
	free(handles);
}

int main(int argc, char **argv)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		fprintf(stderr, "no CUDA driver: %s\n", dlerror());
		return 1;
	}
	void *context;
	int device;
	CALL(cuInit, 0u);
	CALL(cuDeviceGet, &device, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, device);
	CALL(cuCtxSetCurrent, context);
	for (int i = 1; i < argc; i++)
		if (atoi(argv[i]) <= 0) {
			fprintf(stderr, "%s is no size; usage: handles [GIB [MIB...]]\n", argv[i]);
			return 2;
		}
	size_t total = (size_t)(argc > 1 ? atoi(argv[1]) : 60) << 30;
	static const int sizes[] = {2, 16, 64, 256, 1024};
	if (argc > 2)
		for (int i = 2; i < argc; i++)
			measure(total, (size_t)atoi(argv[i]) << 20);
	else
		for (int i = 0; i < 5; i++)
			measure(sizes[i] == 2 ? total / 8 : total, (size_t)sizes[i] << 20);
	return 0;
}
