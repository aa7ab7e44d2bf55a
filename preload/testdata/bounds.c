/* The process meets a limit, before the library starts or in the middle of use: it gets codes, and contents are kept.
 * Called as: bounds as|data|threads|maps before|after ROOM ALLOCATIONS, with ROOM in MiB, threads or mappings, and
 * ALLOCATIONS in each of four threads. */
#include "host.h"

enum { DEVICES = 8, PAGE = 4096 };

static long status(const char *field)
{
	char line[256], format[64];
	long value = 0;
	FILE *file = fopen("/proc/self/status", "r");
	CHECK(file);
	snprintf(format, sizeof format, "%s: %%ld", field);
	while (fgets(line, sizeof line, file))
		if (sscanf(line, format, &value) == 1)
			break;
	fclose(file);
	return value;
}

static char *many; /* mappings of a page each */

static void use_up_mappings(long room)
{
	long most = 200000, made = 0;
	many = mmap(NULL, (size_t)most * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(many != MAP_FAILED);
	while (made < most && mprotect(many + made * PAGE, PAGE, PROT_NONE) == 0)
		made += 2;
	for (long i = 0; i < room / 2 && made > 0; i++, made -= 2)
		mprotect(many + (made - 2) * PAGE, PAGE, PROT_READ);
}

static void limit(const char *what, long room)
{
	if (strcmp(what, "as") == 0)
		limit_to(RLIMIT_AS, (rlim_t)(status("VmSize") << 10) + (rlim_t)room * MIB);
	else if (strcmp(what, "data") == 0)
		limit_to(RLIMIT_DATA, (rlim_t)(status("VmData") << 10) + (rlim_t)room * MIB);
	else if (strcmp(what, "threads") == 0)
		limit_to(RLIMIT_NPROC, (rlim_t)(status("Threads") + room));
	else
		use_up_mappings(room);
}

static bool refused(int code)
{
	CHECK(code == 0 || code == 2 || code == 304);
	CHECK(code != 304 || tms_last_error()[0]); /* for 2 the thread may have had no memory for a text */
	return code != 0;
}

static pthread_barrier_t begun, limited;
static int allocations; /* of each thread */

/* A thread's first allocation makes a heap, without which the driver has no memory in this thread under the limit. A real
 * driver's first call in a thread takes memory in the loader, too, which ends the process when there is none. */
static void *use(void *unused)
{
	char tag[16];
	void *volatile heap = malloc(1024);
	free(heap);
	EXPECT(cudaSetDevice(0), 0);
	pthread_barrier_wait(&begun);
	pthread_barrier_wait(&limited);
	for (int i = 0; i < allocations; i++) {
		void *pointer = NULL;
		snprintf(tag, sizeof tag, "t%d", i % 20);
		EXPECT(cudaSetDevice(i % DEVICES), 0);
		tms_set_interesting_region(true);
		tms_set_current_tag(tag);
		tms_set_enable_cpu_backup(i % 2);
		if (refused(cudaMalloc(&pointer, i % 3 ? 512 : 3 * MIB)))
			continue;
		if (i % 4 == 0)
			refused(cudaFree(pointer));
		if (i % 50 == 49) {
			refused(tms_pause(tag));
			refused(tms_resume(tag));
		}
	}
	refused(tms_pause(NULL));
	refused(tms_resume(NULL));
	return unused;
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	const char *what = argv[1];
	bool after = strcmp(argv[2], "after") == 0;
	allocations = atoi(argv[4]);
	if (strcmp(what, "threads") == 0 && getuid() == 0) /* this limit does not bind root */
		CHECK(setgid(23456) == 0 && setuid(23456) == 0);
	void *plain = NULL, *kept = NULL;
	EXPECT(cudaMalloc(&plain, MIB), 0);
	if (after) {
		kept = kept_memory(8 * MIB, "kept", 1);
		PAUSE_AND_RESUME("kept");
	}
	pthread_t threads[4];
	pthread_barrier_init(&begun, NULL, 5);
	pthread_barrier_init(&limited, NULL, 5);
	start_all(threads, 4, use);
	pthread_barrier_wait(&begun);
	limit(what, atol(argv[3]));
	pthread_barrier_wait(&limited);
	join_all(threads, 4);
	limit_to(RLIMIT_AS, RLIM_INFINITY);
	limit_to(RLIMIT_DATA, RLIM_INFINITY);
	if (many)
		munmap(many, 200000ul * PAGE);
	EXPECT(tms_resume(NULL), 0);
	if (kept) {
		CHECK(filled(kept, 8 * MIB, 1));
		EXPECT(cudaFree(kept), 0);
	}
	EXPECT(cudaFree(plain), 0);
	return 0;
}
