// The driver itself and its devices: start, names, attributes, error codes.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "abi/attributes.h"
#include "base/process.h"
#include "entry/gate.h"

#define DRIVER_VERSION 13000

static CUresult init(unsigned flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim.settings.device_count)
		return CUDA_ERROR_NO_DEVICE;
	TRY(budget_join());
	if (!process_publish(memory.devices[0].total)) {
		sim_complain("no memfd can be made: %s; cuInit returns 304", strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim.initialized = true;
	return CUDA_SUCCESS;
}

#define DEVICE_GIVES(device, pointer, value) \
	((pointer) && !device_valid(device) ? CUDA_ERROR_INVALID_DEVICE : GIVES(pointer, value))

static CUresult name_of(char *name, int length, CUdevice device)
{
	TRY(device_check(device, length > 0 ? name : NULL));
	snprintf(name, (size_t)length, "%s", device_name(process_place(device)).text);
	return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
	TRY(device_check(device, uuid));
	uuid_write(uuid, process_place(device));
	return CUDA_SUCCESS;
}

static CUresult part_uuid_of(CUuuid *uuid, CUdevice device)
{
	TRY(device_check(device, uuid));
	part_uuid_write(uuid, process_place(device));
	return CUDA_SUCCESS;
}

static CUresult attribute_of(int *value, int attribute, CUdevice device)
{
	TRY(device_check(device, attribute >= 1 && attribute <= 161 ? value : NULL));
	*value = 0;
	switch (attribute) {
#define X(number, name, has, ...) \
	case number: *value = has; break;
		DEVICE_ATTRIBUTES(X, X, X)
#undef X
	}
	return CUDA_SUCCESS;
}

static CUresult look_up(CUresult error, const char **result, bool words)
{
	if (!result)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)error) {
#define X(code, driver, runtime, text) \
	case code: *result = words ? text : #driver; return CUDA_SUCCESS;
		ERRORS(X)
#undef X
	}
	*result = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

ERROR_FUNCTIONS(DEFINE)
DEVICE_FUNCTIONS(DEFINE)
