/* A program whose only libcudart came with a library that it opens, under another name. Called as: alone LIBRARY */
#include "host.h"

int main(int argc, char **argv)
{
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL, *pointer = NULL;
	CHECK(library);
	int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "allocate");
	int (*release)(void *) = (int (*)(void *))dlsym(library, "release");
	EXPECT(allocate(&pointer, 64), 0);
	EXPECT(release(pointer), 0);
	EXPECT(release(NULL), 7);
	EXPECT(allocate(&pointer, 65), 2);
	return 0;
}
