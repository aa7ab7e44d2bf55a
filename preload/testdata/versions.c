/* Each library gets its own libcudart: its structures, and its last error. Called as: versions LIBRARY..., each linked
 * with a major of its own, or none, and opened with RTLD_LOCAL, used in between. */
#include "host.h"

struct user {
	int (*overrun)(void *), (*allocate)(void **, size_t), (*release)(void *), (*last)(int);
};

static void uses(const struct user *user, const struct user *other)
{
	void *plain = NULL, *ours = NULL, *none = NULL;
	EXPECT(user->allocate(&plain, 4096), 0);
	EXPECT(user->overrun(plain), 0);
	IN_REGION(EXPECT(user->allocate(&ours, 4096), 0));
	EXPECT(user->overrun(ours), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(user->overrun(ours), 0);
	EXPECT(tms_resume(NULL), 0);
	EXPECT(user->last(false), 0);
	for (int in = 0; in < 2; in++) {
		if (in)
			tms_set_interesting_region(true);
		EXPECT(user->allocate(&none, (size_t)1 << 45), 2);
		if (in)
			tms_set_interesting_region(false);
		if (other)
			EXPECT(other->last(false), 0);
		EXPECT(user->last(true), 2);
		EXPECT(user->last(false), 2);
		EXPECT(user->last(false), 0);
	}
	EXPECT(user->release((char *)ours + 100), 1);
	EXPECT(user->last(false), 1);
	EXPECT(user->release(plain), 0);
	EXPECT(user->release(ours), 0);
}

int main(int argc, char **argv)
{
	struct user users[2];
	CHECK(argc <= 3);
	for (int i = 0; i < argc - 1; i++) {
		void *library = dlopen(argv[i + 1], RTLD_NOW | RTLD_LOCAL);
		CHECK(library);
		users[i].overrun = (int (*)(void *))dlsym(library, "overrun");
		users[i].allocate = (int (*)(void **, size_t))dlsym(library, "allocate");
		users[i].release = (int (*)(void *))dlsym(library, "release");
		users[i].last = (int (*)(int))dlsym(library, "last");
		CHECK(users[i].overrun && users[i].allocate && users[i].release && users[i].last);
		for (int user = 0; user <= i; user++)
			uses(&users[user], i ? &users[!user] : NULL);
	}
	return 0;
}
