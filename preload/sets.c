/* sets has the tms_kept_* functions, for sets of memory that no process owns. sets.go does the work. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "tms.h"

#include <stdlib.h>

static int start(char *arguments[], const char *without)
{
	int code = helper_run(arguments, NULL, without, "try again");
	return code == HELPER_ENDED ? ERROR_OPERATING_SYSTEM : code;
}

HIDDEN int keeper_start(void)
{
	return start((char *[]){NULL, "keeper", "--start", NULL}, "sets of memory need a keeper");
}

HIDDEN int set_promote(const char *name)
{
	return start((char *[]){NULL, "kept", "promote", "--start", "--", (char *)name, NULL},
		     "it is to bring the set back to the device");
}

/* Demotes other sets for TMS_KEPT_BUDGET. A failure is only logged, because the new set is complete. */
static void keep_budget(void)
{
	const char *budget = getenv("TMS_KEPT_BUDGET");
	int code = budget && *budget ? start((char *[]){NULL, "kept", "demote", "--start", NULL},
					     "no other set is demoted for TMS_KEPT_BUDGET")
				     : SUCCESS;
	error_log_failure("tms_kept_seal", code);
}

static int begin(int kind, tms_kept **set, const char *name, int device)
{
	uint64_t handle = 0;
	if (!set || !name)
		return error_fail(ERROR_INVALID_VALUE, "a set to fill in and a name are needed");
	int code = operation_serve(); /* a new keeper asks here */
	struct operation operation = {.kind = kind, .set = {.name = name, .tag = region_get().tag, .device = device}};
	if (code == SUCCESS)
		code = operation_apart(&operation, &handle);
	if (code == SUCCESS)
		*set = (tms_kept *)(uintptr_t)handle;
	return code;
}

EXPORT int tms_kept_create(tms_kept **set, const char *name, int device)
{
	int code = device < 0 ? current_device_of_driver(&device) : SUCCESS;
	return code == SUCCESS ? begin(OPERATION_SET_CREATE, set, name, device) : code;
}

EXPORT int tms_kept_open(tms_kept **set, const char *name)
{
	return begin(OPERATION_SET_OPEN, set, name, 0);
}

static int on(int kind, struct operation_set set, uint64_t *result)
{
	struct operation operation = {.kind = kind, .set = set};
	return operation_apart(&operation, result);
}

EXPORT int tms_kept_add(tms_kept *set, size_t size, void **address)
{
	uint64_t made = 0;
	if (!address)
		return error_fail(ERROR_INVALID_VALUE, "the address to fill in is NULL");
	int code = gate_before_allocation();
	if (code == SUCCESS)
		code = on(OPERATION_SET_ADD, (struct operation_set){.handle = (uintptr_t)set, .size = size}, &made);
	if (code == SUCCESS)
		*address = (void *)(uintptr_t)made;
	return code;
}

EXPORT int tms_kept_seal(tms_kept *set, const void *manifest, size_t size)
{
	if (!manifest && size)
		return error_fail(ERROR_INVALID_VALUE, "the manifest is NULL");
	struct operation_set asked = {.handle = (uintptr_t)set, .manifest = manifest, .size = size};
	int code = on(OPERATION_SET_SEAL, asked, NULL);
	if (code == SUCCESS)
		keep_budget();
	return code;
}

EXPORT int tms_kept_manifest(tms_kept *set, void *buffer, size_t capacity, size_t *size)
{
	size_t bytes = 0;
	int code = IN_GO(tmsSetManifest((uintptr_t)set, buffer, capacity, &bytes));
	if (code == SUCCESS && size)
		*size = bytes;
	return code;
}

EXPORT int tms_kept_attach(tms_kept *set)
{
	int code = gate_before_allocation();
	return code == SUCCESS ? on(OPERATION_SET_ATTACH, (struct operation_set){.handle = (uintptr_t)set}, NULL) : code;
}

/* Moves a set to another version, and stores the number of the version that it has then, and whether it had another. */
static int move(int kind, tms_kept *set, uint64_t *version, int *moved)
{
	const uint64_t moved_bit = 1ULL << 63; /* in the result: versions.go */
	uint64_t result = 0;
	int code = gate_before_allocation();
	if (code == SUCCESS)
		code = on(kind, (struct operation_set){.handle = (uintptr_t)set}, &result);
	if (code != SUCCESS)
		return code;
	if (version)
		*version = result & ~moved_bit;
	if (moved)
		*moved = (result & moved_bit) != 0;
	return SUCCESS;
}

EXPORT int tms_kept_advance(tms_kept *set, uint64_t *version, int *moved)
{
	return move(OPERATION_SET_ADVANCE, set, version, moved);
}

EXPORT int tms_kept_back(tms_kept *set, uint64_t *version, int *moved)
{
	return move(OPERATION_SET_BACK, set, version, moved);
}

EXPORT int tms_kept_settle(tms_kept *set)
{
	return on(OPERATION_SET_SETTLE, (struct operation_set){.handle = (uintptr_t)set}, NULL);
}

EXPORT int tms_kept_follow(tms_kept *set, int keeps)
{
	struct operation_set asked = {.handle = (uintptr_t)set, .size = keeps != 0};
	return on(OPERATION_SET_FOLLOW, asked, NULL);
}

EXPORT int tms_kept_version(tms_kept *set, uint64_t *version)
{
	return version ? IN_GO(tmsSetVersion((uintptr_t)set, version))
		       : error_fail(ERROR_INVALID_VALUE, "the version to fill in is NULL");
}

EXPORT int tms_kept_before(tms_kept *set, uint64_t *version)
{
	return version ? IN_GO(tmsSetBefore((uintptr_t)set, version))
		       : error_fail(ERROR_INVALID_VALUE, "the version to fill in is NULL");
}

EXPORT int tms_kept_chunk(tms_kept *set, size_t index, void **address, size_t *size, int *device)
{
	uintptr_t base = 0;
	size_t bytes = 0;
	int ordinal = 0;
	int code = IN_GO(tmsSetChunk((uintptr_t)set, index, &base, &bytes, &ordinal));
	if (code != SUCCESS)
		return code;
	if (address)
		*address = (void *)base;
	if (size)
		*size = bytes;
	if (device)
		*device = ordinal;
	return SUCCESS;
}

EXPORT int tms_kept_close(tms_kept *set)
{
	return on(OPERATION_SET_CLOSE, (struct operation_set){.handle = (uintptr_t)set}, NULL);
}
