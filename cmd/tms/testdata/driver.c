// A driver whose devices and version come from the environment. The test makes the other functions that the command
// binds, which return success.
#include <stdlib.h>

static int number(const char *name, int fallback)
{
	const char *text = getenv(name);
	return text ? atoi(text) : fallback;
}

int cuInit(unsigned flags)
{
	(void)flags;
	return number("FAKE_INIT", 0);
}

int cuDriverGetVersion(int *version)
{
	*version = number("FAKE_VERSION", 13000);
	return 0;
}

int cuDeviceGetCount(int *count)
{
	*count = number("FAKE_DEVICES", 2);
	return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return 0;
}

// FAKE_VMM is a mask of the devices that have virtual memory management.
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == 102 && number("FAKE_VMM", 3) >> device & 1;
	return 0;
}
