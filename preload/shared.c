/* shared knows what device memory this process shares with others by handles (cuMemExportToShareableHandle,
 * cuMemImportFromShareableHandle) and still has: of handles that were imported, or can be exported, the references and
 * mappings are counted, for the memory is there until the last has gone. NCCL gives all of its own back when it is
 * suspended, and the driver can checkpoint the process then. A descriptor that was exported counts while it is open.
 *
 * As in account.c the lock is never held during a call of CUDA, and what takes away is noted before it is made. What
 * finds no room here, or was made unseen, is shared for good (everything_note). */
#define _GNU_SOURCE
#include "shim.h"
#include "forward.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

HIDDEN _Atomic bool shared_watched;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mark process; /* whose memory it is */

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

static void end(void)
{
	pthread_mutex_unlock(&lock);
}

static const void *key(uint64_t handle)
{
	return (const void *)(uintptr_t)handle;
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void watch(void)
{
	bool first = false;
	pthread_mutex_lock(&lock);
	if (!atomic_load(&shared_watched)) {
		first = true;
		fork_mark_set(&process);
		atomic_store(&mapping_watched, true);
		atomic_store_explicit(&shared_watched, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	if (first)
		fork_notify(before_fork, after_fork, after_fork);
}

HIDDEN void shared_created(uint64_t handle)
{
	watch();
	if (!begin())
		return;
	table_put(&handles, (struct block){.address = key(handle), .references = 1});
	end();
}

/* Takes out what nothing holds any more. */
static struct block settle(struct block *handle)
{
	return handle->references || handle->mappings ? (struct block){0} : table_take(&handles, handle->address);
}

static void put_back(struct block handle, uint32_t references, uint32_t more)
{
	struct block *found = table_find(&handles, handle.address);
	if (!handle.address)
		return;
	if (found) {
		found->references += references;
		found->mappings += more;
		return;
	}
	handle.references = references;
	handle.mappings = more;
	if (!table_put(&handles, handle) && handle.call)
		everything_note(handle.call, SUCCESS);
}

HIDDEN int shared_import(uint64_t *handle, void *shareable, int type)
{
	static const char call[] = "cuMemImportFromShareableHandle";
	int code = forward_cuMemImportFromShareableHandle(handle, shareable, type);
	if (code != SUCCESS)
		return code;
	watch();
	if (!begin())
		return code;
	struct block *found = table_find(&handles, key(*handle));
	if (found) {
		found->references++;
		found->call = call;
	} else if (!table_put(&handles, (struct block){.address = key(*handle), .call = call, .references = 1})) {
		everything_note(call, SUCCESS);
	}
	end();
	return code;
}

static bool what_is(int descriptor, char what[60])
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
	ssize_t length = readlink(path, what, 59);
	what[length > 0 ? length : 0] = 0;
	return length > 0;
}

/* Whether there is room. */
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
	static const char call[] = "cuMemExportToShareableHandle";
	int code = forward_cuMemExportToShareableHandle(shareable, handle, type, flags);
	if (code != SUCCESS)
		return code;
	struct block *found = NULL;
	bool known = false;
	if (begin()) {
		if ((found = table_find(&handles, key(handle))))
			found->call = call;
		known = found && (type != POSIX_FD || note_descriptor(*(int *)shareable));
		end();
	}
	return known ? code : everything_note(call, code);
}

HIDDEN int shared_retain(uint64_t *handle, void *address)
{
	int code = account_retain(handle, address);
	if (code == SUCCESS && begin()) {
		struct block *found = table_find(&handles, key(*handle));
		if (found)
			found->references++;
		end();
	}
	return code;
}

HIDDEN int shared_release(uint64_t handle)
{
	struct block was = {0};
	if (begin()) {
		struct block *found = table_find(&handles, key(handle));
		if (found && found->references) {
			was = *found;
			found->references--;
			settle(found);
		}
		end();
	}
	int code = account_release(handle);
	if (code != SUCCESS && was.address && begin()) {
		put_back(was, 1, 0);
		end();
	}
	return code;
}

/* One has gone, or was not made. */
static struct block unmapped(uint64_t handle)
{
	struct block *found = table_find(&handles, key(handle)), was = {0};
	if (!found || !found->mappings)
		return was;
	was = *found;
	found->mappings--;
	settle(found);
	return was;
}

/* In place of one there that went unseen. */
static void mapped(struct block mapping)
{
	struct block before = table_take(&mappings, mapping.address);
	if (before.address)
		unmapped(before.handle);
	table_put(&mappings, mapping); /* without room for it the handle counts for good */
}

HIDDEN int shared_map(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	bool known = false;
	if (begin()) {
		struct block *found = table_find(&handles, key(handle));
		if ((known = found))
			found->mappings++;
		end();
	}
	int code = account_map(address, size, offset, handle, flags);
	if (known && begin()) {
		if (code == SUCCESS)
			mapped((struct block){.address = (const void *)address, .size = size, .handle = handle});
		else
			unmapped(handle);
		end();
	}
	return code;
}

HIDDEN int shared_unmap(uintptr_t address, size_t size)
{
	enum { MOST = 32 }; /* that are put back, when it fails */
	struct block taken[MOST], were[MOST];
	const char *lost = NULL; /* of what is shared, beyond those */
	size_t count = 0;
	if (begin()) {
		for (uintptr_t at = address; at - address < size;) {
			struct block mapping = table_take(&mappings, (const void *)at);
			if (!mapping.address)
				break;
			struct block was = unmapped(mapping.handle);
			if (count < MOST)
				taken[count] = mapping, were[count++] = was;
			else if (was.call)
				lost = was.call;
			at += mapping.size;
		}
		end();
	}
	int code = account_unmap(address, size);
	if (code != SUCCESS && count && begin()) {
		while (count-- > 0) {
			put_back(were[count], 0, 1);
			mapped(taken[count]);
		}
		if (lost)
			everything_note(lost, SUCCESS);
		end();
	}
	return code;
}

HIDDEN const char *shared_obstacle(void)
{
	const char *call = NULL;
	char what[60];
	if (!begin())
		return NULL;
	for (size_t i = 0; i < handles.slot_count && !call; i++)
		if (handles.slots[i].address)
			call = handles.slots[i].call;
	for (size_t i = 0; i < descriptor_count;)
		if (what_is(descriptors[i].number, what) && strcmp(what, descriptors[i].what) == 0)
			call = call ? call : "cuMemExportToShareableHandle", i++;
		else
			descriptors[i] = descriptors[--descriptor_count];
	end();
	return call;
}
