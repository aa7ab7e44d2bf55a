/* A function that the driver returns by name passes the gate, also if the driver exports another; but not if it may be
 * a newer one with other arguments. Then the library knows so, however the program finds the function. Called as:
 * unknown name|dlsym|bound */
#include "host.h"

#include "../gate/reach/gate.h"

typedef int launch_function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
			    uintptr_t, uintptr_t, uintptr_t);
typedef int find_function(const char *, void **, int, uint64_t, int *);

static void *by_name(const char *name)
{
	void *found = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver);
	find_function *find = (find_function *)dlsym(driver, "cuGetProcAddress_v2");
	CHECK(find);
	EXPECT(find(name, &found, 13000, 0, NULL), 0);
	return found;
}

static void is_refused(const char *words)
{
	CHECK(tms_reach_gate.not_gated());
	CHECK(!strcmp(tms_reach_gate.not_gated(), words));
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	CHECK(&tms_reach_gate && !tms_reach_gate.unusable());
	launch_function *launch = (launch_function *)by_name("cuLaunchKernel");
	CHECK((void *)launch == dlsym(RTLD_DEFAULT, "cuLaunchKernel"));
	EXPECT(launch(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), 42);
	CHECK(!tms_reach_gate.not_gated());
	if (strcmp(argv[1], "name") == 0) {
		int (*copy)(void) = (int (*)(void))by_name("cuMemcpyAsync");
		EXPECT(copy(), 5);
		is_refused("cuMemcpyAsync of CUDA 13.0");
	} else if (strcmp(argv[1], "dlsym") == 0) {
		void *driver = dlopen("libcuda.so.1", RTLD_NOW);
		CHECK(!dlsym(driver, "cuMemcpyAsync_v3") && !tms_reach_gate.not_gated());
		int (*copy)(void) = (int (*)(void))dlsym(driver, "cuMemcpyAsync_v2");
		EXPECT(copy(), 3);
		is_refused("cuMemcpyAsync_v2");
	} else {
		void *plugin = dlopen(argv[2], RTLD_NOW);
		CHECK(plugin);
		EXPECT(((int (*)(void))dlsym(plugin, "copy"))(), 3);
		is_refused("cuMemcpyAsync_v2");
	}
	return 0;
}
