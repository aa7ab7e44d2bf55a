/* In the place of libtms.so, for libtms_reach.so: a process that shares its devices, for which others always make room. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static int times, last_device;
static size_t last_bytes;

static bool room(int device, size_t bytes)
{
	times++;
	last_device = device;
	last_bytes = bytes;
	return true;
}

bool (*tms_room(void))(int, size_t)
{
	return room;
}

/* How often since the last time, and for what. */
int room_asked(int *device, size_t *bytes)
{
	int since = times;
	times = 0;
	*device = last_device;
	*bytes = last_bytes;
	return since;
}

void *tms_driver_function(const char *name, void *theirs, const void *caller)
{
	(void)name, (void)theirs, (void)caller;
	return NULL;
}

bool tms_is_pausable(uintptr_t address)
{
	(void)address;
	return false;
}
