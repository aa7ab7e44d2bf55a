/* operation is the core of pause and resume as the host sees them: hand over, wait, be told. */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "region.h"
#include "tms.h"

#include <errno.h>
#include <stdlib.h>

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
