/* A program in a locale with a decimal comma pauses everything of itself, and resumes it. */
#include "host.h"

#include <locale.h>

int main(void)
{
	char half[8];
	void *memory = kept_memory(MIB, "t", 3);
	CHECK(setlocale(LC_NUMERIC, "comma"));
	snprintf(half, sizeof half, "%.1f", 0.5);
	CHECK(strcmp(half, "0,5") == 0);
	EXPECT(tms_pause_everything(30.5), 0);
	EXPECT(tms_resume_within(NULL, 30.5), 0);
	CHECK(filled(memory, MIB, 3));
	return 0;
}
