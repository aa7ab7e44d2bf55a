/* Two copies of one major of libcudart in a process, each with a library that is bound to it. Errors of calls that do
 * not come through libtms.so are in the library's own copy, and errors of other calls in the first copy. Both are
 * returned. Each library's reset of the device reaches its own copy.
 * Called as: copies LIBRARY FAILS LIBRARY FAILS, FAILS being what a launch answers there */
#include "host.h"

struct user {
	int (*launch)(void), (*last)(int), (*allocate)(void **, size_t), (*reset)(void), *resets, fails;
};

int main(int argc, char **argv)
{
	struct user users[2];
	void *pointer = NULL;
	CHECK(argc == 5);
	for (int i = 0; i < 2; i++) {
		void *library = dlopen(argv[2 * i + 1], RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		users[i].launch = (int (*)(void))dlsym(library, "launch");
		users[i].last = (int (*)(int))dlsym(library, "last");
		users[i].allocate = (int (*)(void **, size_t))dlsym(library, "allocate");
		users[i].reset = (int (*)(void))dlsym(library, "reset");
		users[i].resets = dlsym(library, "cudaResets"); /* of the libcudart that it needs */
		users[i].fails = atoi(argv[2 * i + 2]);
		CHECK(users[i].launch && users[i].last && users[i].allocate && users[i].reset && users[i].resets);
	}
	EXPECT(users[0].allocate(&pointer, 64), 0);
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 2; i++) {
			EXPECT(users[i].launch(), users[i].fails);
			if (i == 1)
				EXPECT(users[0].last(false), 0);
			EXPECT(users[i].last(true), users[i].fails);
			EXPECT(users[i].last(false), users[i].fails);
			EXPECT(users[i].last(false), 0);
		}
	EXPECT(users[1].allocate(&pointer, (size_t)1 << 45), 2);
	EXPECT(users[1].last(false), 2);
	EXPECT(users[1].reset(), 0);
	EXPECT(*users[0].resets, 0);
	EXPECT(*users[1].resets, 1);
	EXPECT(users[0].reset(), 0);
	EXPECT(*users[0].resets, 1);
	EXPECT(*users[1].resets, 1);
	return 0;
}
