/* record writes recordings of what the process does with device memory, for TMS_TRACE or tms record, and does nothing
 * without them. Its callers know whose memory that is. */
#ifndef TMS_RECORD_H
#define TMS_RECORD_H

#include "../goruntime/goruntime.h"

extern _Atomic bool trace_on HIDDEN;
HIDDEN void trace_load(void);
HIDDEN void trace_turned(bool on); /* the library's own: recording begins, or has ended, also in a forked child */
HIDDEN void trace_malloc(int code, const void *address, size_t size, const void *stream, bool pausable);
HIDDEN void trace_pool_malloc(int code, const void *address, size_t size, const void *stream, const void *pool);
/* A free is recorded before it happens, while no other thread can get the address, and taken back if it fails. */
#define TRACE_SAME_STREAM ((void *)-1) /* the allocation's */
HIDDEN void trace_free(const void *address, const void *stream);
HIDDEN void trace_freed(int code, const void *address);
HIDDEN void trace_changed(void); /* memory that is no allocation has changed: its tag's figures may have, too */
HIDDEN void trace_pool_destroyed(const void *pool);
HIDDEN int trace_recording(void); /* the number of the recording, from 1 on */
HIDDEN const char *trace_start(const char *file); /* for tms record; NULL, or why not */
HIDDEN const char *trace_end(int recording);	  /* NULL, or why it had ended before */
static inline bool trace_is_on(void)
{
	return atomic_load_explicit(&trace_on, memory_order_relaxed);
}

/* An operation, as recording.go passes it on. Tags are interned. A NULL tag means all tags, or none. */
enum trace_kind { TRACE_PAUSE = 1, TRACE_RESUME, TRACE_MOVE, TRACE_WAIT };
struct trace_operation {
	uint32_t number; /* not 0; the same at the begin and at the end, on whichever thread */
	bool over;	 /* else it begins, and all behind the tag is 0 */
	enum trace_kind kind;
	const char *tag;
	int code;
	uint64_t bytes, copied;		/* device memory given back or taken; contents */
	uint64_t took, waited, copying; /* nanoseconds: in all, and of these */
};
struct trace_figures { /* for a tag on a device, in bytes */
	int device;
	const char *tag;
	uint64_t live, physical, host, disk, peer;
};
HIDDEN void trace_operation(const struct trace_operation *operation);
HIDDEN void trace_figures(const struct trace_figures *figures);
HIDDEN void trace_allocation(int device, uintptr_t address, uint64_t size, const char *tag, bool earlier, bool mapped);
HIDDEN void trace_unmapped(uintptr_t address, uint64_t size);
HIDDEN void trace_sample_after(uint64_t pause); /* nanoseconds, until tmsTraceFigures is called again */

#endif
