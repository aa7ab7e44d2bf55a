/* A program with more thread-local data than the library's threads have stack. */
#include "host.h"

static __thread volatile char data[2200000];

static void *touch(void *unused)
{
	data[sizeof data / 2] = 1;
	return unused;
}

int main(void)
{
	on_a_thread(touch, NULL);
	void *memory = kept_memory(32 * MIB, "t", 3);
	for (int i = 0; i < 3; i++)
		PAUSE_AND_RESUME("t");
	CHECK(filled(memory, 32 * MIB, 3));
	EXPECT(tms_serve(), 0);
	return 0;
}
