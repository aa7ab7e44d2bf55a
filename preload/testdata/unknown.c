/* What the driver answers by name passes the gate also where it is not what it exports; but not where it may be a
 * newer function, with other arguments, and then that is known. */
#include "host.h"

#include "../../reach/gate.h"

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

int main(void)
{
	CHECK(&tms_reach_gate && !tms_reach_gate.unusable());
	launch_function *launch = (launch_function *)by_name("cuLaunchKernel");
	CHECK((void *)launch == dlsym(RTLD_DEFAULT, "cuLaunchKernel"));
	EXPECT(launch(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), 42);
	CHECK(!tms_reach_gate.not_gated());
	int (*copy)(void) = (int (*)(void))by_name("cuMemcpyAsync");
	EXPECT(copy(), 5);
	CHECK(tms_reach_gate.not_gated());
	CHECK(!strcmp(tms_reach_gate.not_gated(), "cuMemcpyAsync of CUDA 13.0"));
	return 0;
}
