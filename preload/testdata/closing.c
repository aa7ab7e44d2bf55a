/* The library is loaded by dlopen, used, closed, and opened again: it stays with its threads and its memory, because a
 * Go runtime cannot be unloaded. Called as: closing PATH */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	void *segment = NULL;
	for (int i = 0; i < 3; i++) {
		void *library = dlopen(argv[1], RTLD_NOW);
		CHECK(library);
		void *(*allocate)(ssize_t, int, void *) =
			(void *(*)(ssize_t, int, void *))dlsym(library, "tms_torch_malloc");
		void (*release)(void *, ssize_t, int, void *) =
			(void (*)(void *, ssize_t, int, void *))dlsym(library, "tms_torch_free");
		int (*pause)(const char *) = (int (*)(const char *))dlsym(library, "tms_pause");
		int (*resume)(const char *) = (int (*)(const char *))dlsym(library, "tms_resume");
		if (allocate == NULL || release == NULL || pause == NULL || resume == NULL)
			return 2;
		if (segment)
			release(segment, 100, 0, NULL);
		if (!(segment = allocate(100, 0, NULL)) || pause(NULL) || resume(NULL))
			return 3;
		if (dlclose(library) != 0)
			return 4;
	}
	return 0;
}
