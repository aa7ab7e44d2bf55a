/* Beside another library that interposes dlsym: CUDA and the library give the usual functions, and the gate holds calls
 * to functions found through both, or says why it cannot. Calls that the loader binds to libcuda pass by the other
 * library, as they do without libtms.so. Called as: hooked behind|before, which is where that library stands; compiled
 * with LINKED, the program is linked to libcuda. */
#include "host.h"

typedef int launch_function(void *, void (*)(void *), void *);

static launch_function *ways[] = {
	NULL, /* by dlsym */
#ifdef LINKED
	cuLaunchHostFunc, /* by the loader */
#endif
};
enum { WAYS = sizeof ways / sizeof *ways };
static _Atomic int launched;

static void nothing(void *unused)
{
	(void)unused;
}

static void *launch(void *way)
{
	EXPECT(cudaFree(NULL), 0);
	EXPECT((*(launch_function **)way)(NULL, nothing, NULL), 0);
	launched++;
	return NULL;
}

/* Ordinary memory that the program takes by functions which dlsym has found: libtms.so passes the calls on. */
static void take_memory(void *driver)
{
	int *allocations = dlsym(RTLD_DEFAULT, "hooked_allocations"), *frees = dlsym(RTLD_DEFAULT, "hooked_frees");
	int (*allocate)(uintptr_t *, size_t) = (int (*)(uintptr_t *, size_t))dlsym(driver, "cuMemAlloc_v2");
	int (*release)(uintptr_t) = (int (*)(uintptr_t))dlsym(driver, "cuMemFree_v2");
	CHECK(allocations && frees && allocate && release);
	const int allocated = *allocations, freed = *frees;
	uintptr_t taken = 0;
	EXPECT(allocate(&taken, MIB), 0);
	EXPECT(*allocations - allocated, 1);
	EXPECT(release(taken), 0);
	EXPECT(*frees - freed, 1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	bool behind = strcmp(argv[1], "behind") == 0;
	struct sigaction action = {.sa_handler = SIG_IGN};
	EXPECT(sigaction(SIGUSR1, &action, NULL), 0);
	void *real = NULL;
	EXPECT(cudaMalloc(&real, MIB), 0);
	EXPECT(cudaFree(real), 0);
	void *memory = kept_memory(4 * MIB, "t", 3);
	PAUSE_AND_RESUME("t");
	CHECK(filled(memory, 4 * MIB, 3));

	int *hooked = dlsym(RTLD_DEFAULT, "hooked_launches");
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(hooked && driver);
	ways[0] = (launch_function *)dlsym(driver, "cuLaunchHostFunc");
	CHECK(ways[0] && !dlsym(driver, "cuThereIsNoSuchThing"));
	if (behind) {
		take_memory(driver);
		EXPECT(tms_pause_gated("t", 30), 0);
	} else {
		FAILS(tms_pause_gated("t", 30), 801, "another library's dlsym");
	}
	pthread_t threads[WAYS];
	for (int i = 0; i < WAYS; i++)
		start(&threads[i], launch, &ways[i]);
	if (behind) {
		usleep(30000); /* in which nothing is launched */
		CHECK(!launched && !*hooked);
		EXPECT(tms_resume("t"), 0);
	}
	for (int i = 0; i < WAYS; i++)
		join(threads[i]);
	EXPECT(launched, WAYS);
	EXPECT(*hooked, 1);
	EXPECT(cudaFree(memory), 0);
	return 0;
}
