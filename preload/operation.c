/* operation runs pauses, resumes and other long work on a thread of the Go runtime, while the caller waits with its
 * signals unblocked and its CUDA context untouched. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "tms.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes that the thread's last operation has freed or mapped. */
static __thread uint64_t last_bytes __attribute__((tls_model("initial-exec")));

EXPORT uint64_t tms_last_bytes(void)
{
	return last_bytes;
}

HIDDEN void operation_result(uint64_t bytes)
{
	last_bytes = bytes;
}

HIDDEN void operation_settings(struct operation_settings *settings, const char *temporary)
{
	const char *set = atomic_load(&region_process.disk_backup_dir);
	settings->retain_cpu_backup = atomic_load(&region_process.retain_cpu_backup);
	if (set) {
		bool environment = set == region_config.disk_backup_dir;
		settings->disk_setting = environment ? "TMS_DISK_BACKUP_DIR" : "tms_set_disk_backup_dir";
		settings->disk_dir = set;
		return;
	}
	bool named = temporary && *temporary;
	settings->disk_setting = named ? "TMPDIR" : "";
	settings->disk_dir = named ? temporary : "/tmp";
}

static _Atomic int running; /* operations */

HIDDEN bool operation_has_threads(void)
{
	int now = atomic_fetch_add(&running, 1) + 1;
	if (likely(now <= OPERATIONS_AT_START || threads_reserve(1, now)))
		return true;
	atomic_fetch_sub(&running, 1);
	return false;
}

HIDDEN void operation_leave_threads(void)
{
	atomic_fetch_sub(&running, 1);
}

static void release(struct operation *operation)
{
	if (atomic_fetch_sub(&operation->users, 1) != 1)
		return;
	sem_destroy(&operation->done);
	free(operation);
}

/* Runs the operation on a thread of the Go runtime, and waits. The caller may never come back from waiting (it
 * is cancelled, or a handler jumps out), so what both use is not on its stack; some hundred bytes are then leaked. */
static int run(const struct operation *asked)
{
	int code = go_start(); /* in a child, malloc's lock may be held forever for another thread */
	if (code != SUCCESS)
		return code;
	struct operation *operation = malloc(sizeof *operation + THREAD_TEXT_SIZE);
	if (!operation)
		return error_fail(ERROR_MEMORY_ALLOCATION, "no host memory for the operation; nothing has changed");
	*operation = *asked;
	operation->error[0] = 0;
	struct visit saved;
	code = go_enter(&saved);
	if (code != SUCCESS) {
		free(operation);
		return code;
	}
	if (unlikely(!operation_has_threads())) {
		if (asked->kind != OPERATION_RESUME)
			tmsLive(NULL, 0, NULL, 0); /* a pause ends what is live, even if it fails */
		go_leave(&saved);
		free(operation);
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "%d pauses and resumes at once need more threads than the process can make; raise "
				  "ulimit -u or the pids limit, or call again when others have ended; nothing has changed",
				  atomic_load(&running) + 1);
	}
	sem_init(&operation->done, 0, 0);
	atomic_store(&operation->users, 2);
	tmsOperation(operation);
	go_leave(&saved);
	while (sem_wait(&operation->done) != 0 && errno == EINTR)
		;
	if (operation->error[0])
		error_set(operation->error);
	last_bytes = operation->result;
	code = operation->code;
	release(operation);
	return code;
}

HIDDEN int operation_apart(const struct operation *asked, uint64_t *result)
{
	uint64_t last = last_bytes;
	int code = run(asked);
	if (result)
		*result = last_bytes;
	last_bytes = last;
	return code;
}

/* The exporter's threads would wait as long for their own memory. Without a gate that stops either process, an exporter
 * that has paused itself may wait for this process, so the program is told. */
HIDDEN int operation_import(int kind, const struct ipc_handle *handle, int (*device)(int *), uint64_t *result)
{
	enum { NOT_READY = 600, TRIES = 1000, BETWEEN = 10000, BETWEEN_MOST = 160000 /* microseconds */ };
	struct operation asked = {.kind = kind, .imported = {.handle = *handle}};
	int code = device(&asked.imported.device);
	if (code != SUCCESS)
		return code;
	control_load();
	bool held = gate_is_closed();
	useconds_t between = BETWEEN;
	code = operation_apart(&asked, result);
	for (int tries = 0; code == SHARE_STOPPED || (code == NOT_READY && (held = held || gate_is_closed()) && tries < TRIES);) {
		int waited = gate_wait();
		if (waited != SUCCESS)
			return waited;
		usleep(between); /* the others are being resumed too, or about to be */
		if (code == SHARE_STOPPED && between < BETWEEN_MOST)
			between *= 2;
		else if (code == NOT_READY)
			tries++, between = BETWEEN;
		code = operation_apart(&asked, result);
	}
	return code;
}

/* Another thread reads the tags, on which a handler of the program's cannot open them: they may lie behind a barrier of
 * the program's. */
static void touch(const char *const *tags)
{
	for (; tags && *tags; tags++)
		(void)*(const volatile char *)*tags, (void)*(volatile char *)(*tags + strlen(*tags));
}

/* While everything is paused, driver calls wait for a resume that this very thread may be about to make. A pause leaves
 * paused memory alone, and a preparation is for active memory, so neither has anything to do. */
static int while_everything_is_paused(int kind, const struct operation_transition *asked)
{
	bool discards = kind == OPERATION_DISCARD ? !asked->tags || asked->tags[0] : asked->discarded && asked->discarded[0];
	if (!checkpoint_pending() && kind != OPERATION_TRIM && !discards)
		return SUCCESS;
	return checkpoint_refuse();
}

HIDDEN int operation_transition(int kind, struct operation_transition asked)
{
	last_bytes = 0;
	if (go_now() == GO_ASLEEP)
		return SUCCESS; /* nothing pausable was ever made */
	touch(asked.tags);
	touch(asked.discarded);
	if (unlikely(checkpoint_asked()) && kind != OPERATION_RESUME && go_now() == GO_AWAKE)
		return while_everything_is_paused(kind, &asked);
	struct operation operation = {.kind = kind, .transition = asked};
	operation_settings(&operation.settings, getenv("TMPDIR"));
	control_load();
	return run(&operation);
}

HIDDEN void operation_finish(struct operation *operation, int code, const char *error, uint64_t result)
{
	operation->result = result;
	operation->code = code;
	snprintf(operation->error, THREAD_TEXT_SIZE, "%s", error);
	operation_leave_threads();
	sem_post(&operation->done);
	release(operation);
}

HIDDEN int operation_await(double seconds)
{
	struct operation operation = {.kind = OPERATION_AWAIT, .transition = {.wait = seconds}};
	return run(&operation);
}

HIDDEN int operation_serve(void)
{
	if (go_now() != GO_DEAD) /* run reports why not */
		control_load();
	struct operation operation = {.kind = OPERATION_SERVE};
	return run(&operation);
}
