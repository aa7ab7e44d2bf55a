/* handles counts the references and mappings of each memory handle (cuMemCreate, cuMemImportFromShareableHandle): the
 * memory exists until the last of them goes. The account counts that memory's bytes until then. The driver's checkpoint
 * must know which of it other processes share: NCCL gives all of its own back when it is suspended, and the driver can
 * checkpoint the process then. An exported descriptor counts as long as it is open.
 *
 * A release or unmap is noted before the call. One that fails is not taken back: shared memory then counts as shared
 * for good (obstacle_note), and the account counts it no longer. The same holds for a handle that finds no room here,
 * or was made unseen. */
#define _GNU_SOURCE
#include "parts.h"
#include "forward.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum shared { NOT_SHARED, EXPORTED, IMPORTED }; /* how a handle's memory is shared */
static const char *const calls[] = {NULL, "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"};

enum { DESCRIPTORS = 64, POSIX_FD = 1 };
static struct exported {
	int number;
	char what[60]; /* as /proc/self/fd has it: another file can have the number later */
} descriptors[DESCRIPTORS];
static size_t descriptor_count;

static const void *key(uint64_t handle)
{
	return (const void *)(uintptr_t)handle;
}

static struct block *find(uint64_t handle)
{
	return blocks_find(HANDLE, key(handle));
}

static void forget_in_child(void)
{
	blocks_clear();
	descriptor_count = 0;
}

static bool begin_first(void)
{
	if (!watch_is_on(WATCH_HANDLES)) {
		watch_follow_forks(forget_in_child);
		watch_turn(WATCH_HANDLES, true);
	}
	return watch_begin(WATCH_HANDLES);
}

static void put(struct block handle)
{
	handle.kind = HANDLE;
	if (!account_put(handle) && handle.shared)
		obstacle_note(calls[handle.shared], SUCCESS);
}

HIDDEN void handles_created(uint64_t handle, size_t size, int device, const void *caller, bool exportable)
{
	bool counts = caller && device >= 0 && watch_is_on(WATCH_COUNTS);
	const char *library = counts ? account_library(caller) : NULL;
	if ((!counts && !exportable) || !begin_first())
		return;
	struct owner *owner = counts ? account_owner(library, device) : NULL;
	if (owner || exportable)
		put((struct block){.address = key(handle), .size = size, .owner = owner, .references = 1});
	watch_end();
}

/* Takes out a handle that nothing holds any longer. */
static void settle(struct block *handle)
{
	if (handle->references || handle->mappings)
		return;
	account_take(HANDLE, handle->address);
}

/* Memory stays shared that a call did not let go of. */
static int ended(int code, int shared)
{
	if (code != SUCCESS && shared)
		obstacle_note(calls[shared], SUCCESS);
	return code;
}

HIDDEN int handles_import(uint64_t *handle, void *shareable, int type)
{
	int code = forward_cuMemImportFromShareableHandle(handle, shareable, type);
	if (code != SUCCESS)
		return code;
	if (!begin_first())
		return code;
	struct block *found = find(*handle);
	if (found) {
		found->references++;
		found->shared = IMPORTED;
	} else {
		put((struct block){.address = key(*handle), .references = 1, .shared = IMPORTED});
	}
	watch_end();
	return code;
}

static bool what_is(int descriptor, char what[60])
{
	char path[40];
	snprintf(path, sizeof path, "/proc/thread-self/fd/%d", descriptor);
	ssize_t length = readlink(path, what, 59);
	what[length > 0 ? length : 0] = 0;
	return length > 0;
}

/* Reports whether there is room. */
static bool note_descriptor(int number)
{
	size_t i = 0;
	while (i < descriptor_count && descriptors[i].number != number)
		i++;
	if (i == DESCRIPTORS)
		return false;
	descriptors[i].number = number;
	if (!what_is(number, descriptors[i].what))
		return false;
	descriptor_count += i == descriptor_count;
	return true;
}

HIDDEN int handles_export(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
	int code = forward_cuMemExportToShareableHandle(shareable, handle, type, flags);
	if (code != SUCCESS)
		return code;
	struct block *found = NULL;
	bool known = false;
	if (watch_begin(WATCH_HANDLES)) {
		if ((found = find(handle)))
			found->shared = EXPORTED;
		known = found && (type != POSIX_FD || note_descriptor(*(int *)shareable));
		watch_end();
	}
	return known ? code : obstacle_note(calls[EXPORTED], code);
}

HIDDEN int handles_retain(uint64_t *handle, void *address)
{
	int code = forward_cuMemRetainAllocationHandle(handle, address);
	if (code == SUCCESS && watch_begin(WATCH_HANDLES)) {
		struct block *found = find(*handle);
		if (found)
			found->references++;
		watch_end();
	}
	return code;
}

HIDDEN int handles_release(uint64_t handle)
{
	int shared = NOT_SHARED;
	if (watch_begin(WATCH_HANDLES)) {
		struct block *found = find(handle);
		if (found && found->references) {
			shared = found->shared;
			found->references--;
			settle(found);
		}
		watch_end();
	}
	return ended(forward_cuMemRelease(handle), shared);
}

/* A mapping is gone, or was not made. Returns how the memory is shared. */
static int unmapped(uint64_t handle)
{
	struct block *found = find(handle);
	if (!found || !found->mappings)
		return NOT_SHARED;
	int shared = found->shared;
	found->mappings--;
	settle(found);
	return shared;
}

/* Replaces a mapping there whose end went unseen. */
static void mapped(struct block mapping)
{
	struct block before = blocks_take(MAPPING, mapping.address);
	if (before.kind)
		unmapped(before.handle);
	blocks_put(mapping); /* without room for it the handle counts for good */
}

/* The mapping holds the handle before it is made, because another thread may release the handle at once. */
HIDDEN int handles_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	bool known = false;
	if (watch_begin(WATCH_HANDLES)) {
		struct block *found = find(handle);
		if ((known = found))
			found->mappings++;
		watch_end();
	}
	int code = forward_cuMemMap(address, size, offset, handle, flags);
	if (known && watch_begin(WATCH_HANDLES)) {
		if (code == SUCCESS)
			mapped((struct block){.kind = MAPPING, .address = (const void *)address, .size = size, .handle = handle});
		else
			unmapped(handle);
		watch_end();
	}
	return code;
}

HIDDEN int handles_unmap(uintptr_t address, size_t size)
{
	int shared = NOT_SHARED;
	if (watch_begin(WATCH_HANDLES)) {
		for (uintptr_t at = address; at - address < size;) { /* several, side by side */
			struct block mapping = blocks_take(MAPPING, (const void *)at);
			if (!mapping.kind)
				break;
			int how = unmapped(mapping.handle);
			shared = how ? how : shared;
			at += mapping.size;
		}
		watch_end();
	}
	return ended(forward_cuMemUnmap(address, size), shared);
}

HIDDEN const char *handles_obstacle(void)
{
	const char *call = NULL;
	char what[60];
	if (!watch_begin(WATCH_HANDLES))
		return NULL;
	struct block *handle;
	for (size_t i = 0; !call && (handle = blocks_next(HANDLE, &i)); i++)
		call = calls[handle->shared];
	for (size_t i = 0; i < descriptor_count;)
		if (what_is(descriptors[i].number, what) && strcmp(what, descriptors[i].what) == 0)
			call = call ? call : calls[EXPORTED], i++;
		else
			descriptors[i] = descriptors[--descriptor_count];
	watch_end();
	return call;
}
