/* When the call returns, a preparation in the background has its place in the order: a trim or a pause that follows
 * comes after it. */
#include "host.h"

int main(void)
{
	void *memory = pausable(8 * MIB, "w", true);
	fill(memory, 8 * MIB, 1);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	for (int i = 0; i < 150; i++) {
		EXPECT(tms_prepare(i % 2 ? "w" : NULL, false), 0);
		EXPECT(tms_trim(), 0);
		EXPECT(sim_stat("registered_bytes"), 0);
	}
	EXPECT(tms_prepare("w", false), 0);
	EXPECT(tms_pause("w"), 0);
	EXPECT(tms_prepare("w", false), 0); /* nothing to do */
	EXPECT(tms_resume("w"), 0);
	CHECK(filled(memory, 8 * MIB, 1));
	EXPECT(tms_prepare("w", false), 0);
	EXPECT(cudaFree(memory), 0);
	EXPECT(tms_trim(), 0);
	EXPECT(sim_stat("registered_bytes"), 0);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
