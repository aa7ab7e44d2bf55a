/* text is the core of words that go from Go to C and stay. */
#include "seam.h"

#include <stdlib.h>
#include <string.h>

HIDDEN char *text_copy(const char *text, size_t length)
{
	char *copy = malloc(length + 1);
	if (!copy)
		return NULL;
	memcpy(copy, text, length);
	copy[length] = 0;
	return copy;
}
