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
		__typeof__(tms_torch_malloc) *allocate = dlsym(library, "tms_torch_malloc");
		__typeof__(tms_torch_free) *release = dlsym(library, "tms_torch_free");
		__typeof__(tms_pause) *pause = dlsym(library, "tms_pause");
		__typeof__(tms_resume) *resume = dlsym(library, "tms_resume");
		CHECK(allocate && release && pause && resume);
		if (segment)
			release(segment, 100, 0, NULL);
		if (!(segment = allocate(100, 0, NULL)) || pause(NULL) || resume(NULL))
			return 3;
		if (dlclose(library) != 0)
			return 4;
	}
	return 0;
}
