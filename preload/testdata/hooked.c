/* Beside another library that interposes dlsym: CUDA and the library give the usual functions, and the gate holds calls
 * to functions found through both, or says why it cannot. Called as: hooked behind|before, which is where that library
 * stands */
#include "host.h"

typedef int memset_function(uintptr_t, unsigned, size_t);

static memset_function *set;
static void *memory;
static _Atomic bool done;

static void *do_it(void *unused)
{
	EXPECT(cudaFree(NULL), 0);
	EXPECT(set((uintptr_t)memory, 5, 1), 0);
	done = true;
	return unused;
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
	memory = kept_memory(4 * MIB, "t", 3);
	PAUSE_AND_RESUME("t");
	CHECK(filled(memory, 4 * MIB, 3));

	int *hooked = dlsym(RTLD_DEFAULT, "hooked_memsets");
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(hooked && driver);
	set = (memset_function *)dlsym(driver, "cuMemsetD32_v2");
	CHECK(set && !dlsym(driver, "cuThereIsNoSuchThing"));
	pthread_t thread;
	if (behind) {
		EXPECT(tms_pause_gated("t", 30), 0);
		start(&thread, do_it, NULL);
		usleep(30000);
		CHECK(!done && !*hooked);
		EXPECT(tms_resume("t"), 0);
	} else {
		FAILS(tms_pause_gated("t", 30), 801, "another library's dlsym");
		start(&thread, do_it, NULL);
	}
	join(thread);
	EXPECT(*hooked, 1);
	EXPECT(cudaFree(memory), 0);
	return 0;
}
