/* A library with a CUDA of its own, in a namespace of its own: a gated pause could not stop its calls, and says so. Called
 * as: namespace LIBRARY */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	void *memory = kept_memory(MIB, "t", 3);
	EXPECT(tms_pause_gated(NULL, 30), 0);
	EXPECT(tms_resume(NULL), 0);
	void *library = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW), *theirs = NULL;
	CHECK(library);
	EXPECT(((int (*)(void **, size_t))dlsym(library, "allocate"))(&theirs, 4096), 0);
	FAILS(tms_pause_gated(NULL, 30), 801, "dlmopen");
	PAUSE_AND_RESUME("t");
	CHECK(filled(memory, MIB, 3));
	return 0;
}
