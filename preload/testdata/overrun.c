/* Reads one byte beyond what was allocated, which only a sanitizer notices (the allocator's own block is larger).
 * Called as: overrun library|simulator */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	char *text = calloc(1, 13);
	CHECK(text);
	memset(text, 'x', 13);
	if (strcmp(argv[1], "library") == 0) {
		tms_set_current_tag(text);
	} else {
		void *device = NULL;
		EXPECT(cudaMalloc(&device, 14), 0);
		EXPECT(cudaMemcpy(device, text, 14, 1), 0);
	}
	return 0;
}
