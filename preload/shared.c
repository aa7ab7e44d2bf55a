/* shared counts the references and mappings of each memory handle (cuMemCreate, cuMemImportFromShareableHandle): the
 * memory exists until the last of them goes. account.c counts that memory's bytes. everything.c asks which of it other
 * processes share: NCCL gives all of its own back when it is suspended, and the driver can checkpoint the process then.
 * An exported descriptor counts as long as it is open.
 *
 * The lock is never held during a CUDA call; account.c's lock is taken below it. A release or unmap is noted before the
 * call. One that fails is not taken back: shared memory then counts as shared for good (obstacle_note), and account.c
 * counts it no longer. The same holds for a handle that finds no room here, or was made unseen. */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SHARED, EXPORTED, IMPORTED }; /* how a handle's memory is shared */
static const char *const calls[] = {NULL, "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"};

HIDDEN _Atomic bool shared_watched;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mark process; /* the one with the memory; a child that no fork handler prepared notes nothing */

/* Guarded by lock. */
static struct table handles, mappings;
enum { DESCRIPTORS = 64, POSIX_FD = 1 };
static struct exported {
	int number;
	char what[60]; /* as /proc/self/fd has it: another file can have the number later */
} descriptors[DESCRIPTORS];
static size_t descriptor_count;

static bool begin(void)
{
	if (!atomic_load_explicit(&shared_watched, memory_order_acquire) || fork_happened(&process))
		return false;
	pthread_mutex_lock(&lock);
	return true;
}

static const void *key(uint64_t handle)
{
	return (const void *)(uintptr_t)handle;
}

FORK_WAITS_FOR(lock)

static void after_fork_in_child(void)
{
	descriptor_count = 0;
	table_clear(&handles);
	table_clear(&mappings);
	fork_mark_set(&process);
	pthread_mutex_unlock(&lock);
}

HIDDEN _Atomic bool handles_tracked, handles_watched;

HIDDEN void handles_track(void)
{
	atomic_store(&handles_tracked, true);
	atomic_store(&handles_watched, true);
}

static void watch(void)
{
	bool first = false;
	pthread_mutex_lock(&lock);
	if (!atomic_load(&shared_watched)) {
		first = true;
		fork_mark_set(&process);
		atomic_store(&handles_watched, true);
		atomic_store_explicit(&shared_watched, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	if (first)
		fork_notify(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Replaces a handle whose end went unseen. Reports whether there is room. */
static bool put(struct block handle)
{
	struct block before = table_take(&handles, handle.address);
	account_subtract(&before);
	bool room = handles.live < BLOCKS_MAX && table_put(&handles, handle);
	account_add(&handle, room);
	if (!room && handle.shared)
		obstacle_note(calls[handle.shared], SUCCESS);
	return room;
}

HIDDEN void shared_created(uint64_t handle, size_t size, struct account_owner *owner)
{
	watch();
	if (!begin())
		return;
	put((struct block){.address = key(handle), .size = size, .owner = owner, .references = 1});
	pthread_mutex_unlock(&lock);
}

/* Takes out a handle that nothing holds any longer. */
static void settle(struct block *handle)
{
	if (handle->references || handle->mappings)
		return;
	account_subtract(handle);
	table_take(&handles, handle->address);
}

/* Memory stays shared that a call did not let go of. */
static int ended(int code, int shared)
{
	if (code != SUCCESS && shared)
		obstacle_note(calls[shared], SUCCESS);
	return code;
}

HIDDEN int shared_import(uint64_t *handle, void *shareable, int type)
{
	int code = forward_cuMemImportFromShareableHandle(handle, shareable, type);
	if (code != SUCCESS)
		return code;
	watch();
	if (!begin())
		return code;
	struct block *found = table_find(&handles, key(*handle));
	if (found) {
		found->references++;
		found->shared = IMPORTED;
	} else {
		put((struct block){.address = key(*handle), .references = 1, .shared = IMPORTED});
	}
	pthread_mutex_unlock(&lock);
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

HIDDEN int shared_export(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
	int code = forward_cuMemExportToShareableHandle(shareable, handle, type, flags);
	if (code != SUCCESS)
		return code;
	struct block *found = NULL;
	bool known = false;
	if (begin()) {
		if ((found = table_find(&handles, key(handle))))
			found->shared = EXPORTED;
		known = found && (type != POSIX_FD || note_descriptor(*(int *)shareable));
		pthread_mutex_unlock(&lock);
	}
	return known ? code : obstacle_note(calls[EXPORTED], code);
}

HIDDEN int shared_retain(uint64_t *handle, void *address)
{
	int code = forward_cuMemRetainAllocationHandle(handle, address);
	if (code == SUCCESS && begin()) {
		struct block *found = table_find(&handles, key(*handle));
		if (found)
			found->references++;
		pthread_mutex_unlock(&lock);
	}
	return code;
}

HIDDEN int shared_release(uint64_t handle)
{
	int shared = NOT_SHARED;
	if (begin()) {
		struct block *found = table_find(&handles, key(handle));
		if (found && found->references) {
			shared = found->shared;
			found->references--;
			settle(found);
		}
		pthread_mutex_unlock(&lock);
	}
	return ended(forward_cuMemRelease(handle), shared);
}

/* A mapping is gone, or was not made. Returns how the memory is shared. */
static int unmapped(uint64_t handle)
{
	struct block *found = table_find(&handles, key(handle));
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
	struct block before = table_take(&mappings, mapping.address);
	if (before.address)
		unmapped(before.handle);
	if (mappings.live < BLOCKS_MAX)
		table_put(&mappings, mapping); /* without room for it the handle counts for good */
}

/* The mapping holds the handle before it is made, because another thread may release the handle at once. */
HIDDEN int shared_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	bool known = false;
	if (begin()) {
		struct block *found = table_find(&handles, key(handle));
		if ((known = found))
			found->mappings++;
		pthread_mutex_unlock(&lock);
	}
	int code = forward_cuMemMap(address, size, offset, handle, flags);
	if (known && begin()) {
		if (code == SUCCESS)
			mapped((struct block){.address = (const void *)address, .size = size, .handle = handle});
		else
			unmapped(handle);
		pthread_mutex_unlock(&lock);
	}
	return code;
}

HIDDEN int shared_unmap(uintptr_t address, size_t size)
{
	int shared = NOT_SHARED;
	if (begin()) {
		for (uintptr_t at = address; at - address < size;) { /* several, side by side */
			struct block mapping = table_take(&mappings, (const void *)at);
			if (!mapping.address)
				break;
			int how = unmapped(mapping.handle);
			shared = how ? how : shared;
			at += mapping.size;
		}
		pthread_mutex_unlock(&lock);
	}
	return ended(forward_cuMemUnmap(address, size), shared);
}

HIDDEN const char *shared_obstacle(void)
{
	const char *call = NULL;
	char what[60];
	if (!begin())
		return NULL;
	for (size_t i = 0; i < handles.slot_count && !call; i++)
		if (handles.slots[i].address)
			call = calls[handles.slots[i].shared];
	for (size_t i = 0; i < descriptor_count;)
		if (what_is(descriptors[i].number, what) && strcmp(what, descriptors[i].what) == 0)
			call = call ? call : calls[EXPORTED], i++;
		else
			descriptors[i] = descriptors[--descriptor_count];
	pthread_mutex_unlock(&lock);
	return call;
}
