/* watch has the entries from preload that all parts look at: an allocation, a free, and the end of a context or a
 * pool. */
#include "parts.h"
#include "forward.h"
#include "region.h"

AT_LOAD HIDDEN void watch_load(void)
{
	caller_load();
	recording_load();
	account_load();
}

HIDDEN void watch_allocated(const struct watch_allocation *allocation)
{
	const struct watch_allocation *a = allocation;
	const char *tag = NULL, *library = NULL;
	void *context = NULL;
	int device = -1;
	if (likely(!watch_is_on(WATCH_CALLS)))
		return;
	/* The questions to the driver and the loader come before the lock. */
	if (a->code == SUCCESS && !a->is_block && forward_cuCtxGetDevice(&device) != SUCCESS)
		device = -1;
	if (a->is_pausable)
		tag = region_get().tag;
	bool counts = a->caller && a->address && watch_is_on(WATCH_COUNTS);
	bool is_known = counts && device >= 0 && forward_cuCtxGetCurrent(&context) == SUCCESS;
	if (is_known)
		library = account_library(a->caller);

	if (!watch_begin(WATCH_CALLS))
		return;
	struct owner *owner = is_known ? account_owner(library, device) : NULL;
	if (owner)
		account_put((struct block){.kind = ALLOCATION, .address = a->address, .size = a->bytes, .owner = owner,
					   .context = context});
	else if (counts && !is_known)
		account_uncounted();
	bool recorded = recording_allocated(a, device, tag);
	watch_end();
	if (recorded)
		recording_sample();
}

HIDDEN struct watch_free watch_freeing(const void *address, const void *stream)
{
	struct watch_free noted = {.address = address};
	if (!address || !watch_begin(WATCH_CALLS))
		return noted;
	struct block block = account_take(ALLOCATION, address);
	noted.size = block.size;
	noted.owner = block.owner;
	noted.context = block.context;
	recording_freeing(address, stream); /* another thread may wait for the memory: no figures yet */
	watch_end();
	return noted;
}

HIDDEN void watch_freed(int code, const struct watch_free *noted)
{
	if (!noted->address)
		return;
	bool recorded = watch_is_on(WATCH_RECORDS);
	if (unlikely(code != SUCCESS) && watch_begin(WATCH_CALLS)) {
		if (noted->owner)
			account_put((struct block){.kind = ALLOCATION, .address = noted->address, .size = noted->size,
						   .owner = noted->owner, .context = noted->context});
		recorded = recording_not_freed(noted->address);
		watch_end();
	}
	if (recorded)
		recording_sample();
}

HIDDEN void watch_own_pool_ended(const void *pool)
{
	if (!watch_begin(WATCH_RECORDS))
		return;
	bool recorded = recording_pool_ended(pool);
	watch_end();
	if (recorded)
		recording_sample();
}

HIDDEN void watch_context_ended(const void *context)
{
	if (!context || !watch_begin(WATCH_COUNTS))
		return;
	account_take_context(context);
	watch_end();
}

HIDDEN const char *obstacle_present(void)
{
	const char *call = obstacle_noted();
	return call ? call : handles_obstacle();
}
