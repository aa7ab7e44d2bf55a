/* calls is what calls.c and the driver in front of the simulator (checking.c) share. */
#ifndef CALLS_H
#define CALLS_H

#include "rows.h"

#include "../../forward/words.h"

#include <stdatomic.h>
#include <stdint.h>

enum { WORDS_MOST = 11, NO_MEMORY = 2, UNTOUCHED = 36, NOT_MAPPED = 1, CHANGED = 37 };

/* The expectations of a thread for the next function of the driver that is called on it. */
struct watched {
	const char *name;
	uintptr_t words[WORDS_MOST], address; /* where memory must be mapped, or 0 if none need be */
	int codes[2];			      /* of the first call and of later calls, if all is right */
	_Atomic int calls;
};

#endif
