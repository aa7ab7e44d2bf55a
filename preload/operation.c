/* operation is the core of pause and resume as the host sees them: hand over, wait, be told. */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "region.h"
#include "tms.h"

#include <errno.h>
#include <stdlib.h>

static const char *disk_directory(void)
{
	const char *set = atomic_load(&region_process.disk_backup_dir);
	if (!set)
		set = getenv("TMPDIR");
	return set && *set ? set : "/tmp";
}

static int run(int kind, const char *tag)
{
	int state = atomic_load(&go_state);
	if (state == GO_ASLEEP)
		return SUCCESS; /* nothing pausable was ever made */
	struct operation operation = {
		.kind = kind,
		.tag = tag,
		.retain_cpu_backup = atomic_load(&region_process.retain_cpu_backup),
		.capturing = atomic_load(&captures) != 0,
		.host_pool_bytes = region_process.host_pool_bytes,
		.disk_dir = disk_directory(),
		.disk_chunk = (uint64_t)region_process.disk_backup_chunk_mb << 20,
	};
	sigset_t saved;
	int code = go_enter(&saved);
	if (code != SUCCESS)
		return code;
	sem_init(&operation.done, 0, 0);
	tmsOperation(&operation);
	go_leave(&saved);
	while (sem_wait(&operation.done) != 0 && errno == EINTR)
		;
	sem_destroy(&operation.done);
	if (operation.error) {
		error_set(operation.error);
		free(operation.error);
	}
	return operation.code;
}

HIDDEN void operation_finish(struct operation *operation, int code, char *error)
{
	operation->code = code;
	operation->error = error;
	sem_post(&operation->done);
}

EXPORT int tms_pause(const char *tag)
{
	return run(OPERATION_PAUSE, tag);
}

EXPORT int tms_resume(const char *tag)
{
	return run(OPERATION_RESUME, tag);
}

EXPORT int tms_prepare(const char *tag, bool wait)
{
	if (wait)
		return run(OPERATION_PREPARE, tag);
	if (atomic_load(&go_state) == GO_ASLEEP)
		return SUCCESS;
	sigset_t saved;
	int code = go_enter(&saved);
	if (code == SUCCESS) {
		tmsPrepare((char *)tag);
		go_leave(&saved);
	}
	return code;
}

EXPORT int tms_trim(void)
{
	return run(OPERATION_TRIM, NULL);
}
