/* operation runs pauses, resumes and other long work on a thread of the Go runtime, while the caller waits with its
 * signals unblocked and its CUDA context untouched. It also tells the host's callback how far they are. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "tms.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* What tms_set_progress_callback was given, replaced as a whole. */
struct progress {
	tms_progress_callback callback;
	void *user;
};
static _Atomic(struct progress *) progress; /* NULL: none */
static _Atomic int progress_readers;

/* Without a lock that a fork could leave held. */
static struct progress progress_now(void)
{
	atomic_fetch_add(&progress_readers, 1);
	struct progress *set = atomic_load(&progress), now = set ? *set : (struct progress){NULL, NULL};
	atomic_fetch_sub(&progress_readers, 1);
	return now;
}

EXPORT void tms_set_progress_callback(tms_progress_callback callback, void *user)
{
	struct progress *fresh = NULL;
	if (unlikely(go_now() == GO_DEAD)) { /* as in run; no operation will be reported here */
		go_start();
		return;
	}
	if (callback) {
		fresh = malloc(sizeof *fresh);
		if (!fresh) {
			error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to keep the callback; it is as before");
			return;
		}
		*fresh = (struct progress){callback, user};
	}
	struct progress *before = atomic_exchange(&progress, fresh);
	if (atomic_load(&progress_readers) == 0) /* else one may be reading it: 16 bytes are leaked */
		free(before);
}

/* Whether this thread is in the callback: an operation waits for that, so the callback must not wait for an
 * operation. */
static __thread bool reporting __attribute__((tls_model("initial-exec")));

HIDDEN void operation_progress(int device, const char *kind, uint64_t done, uint64_t total)
{
	struct progress now = progress_now();
	if (!now.callback || gate_is_shut()) /* it may wait for a lock of a thread that the gate holds */
		return;
	reporting = true;
	now.callback(device, kind, done, total, now.user);
	reporting = false;
}

/* What the thread's last operation freed, or mapped. */
static __thread uint64_t last_bytes __attribute__((tls_model("initial-exec")));

EXPORT uint64_t tms_last_bytes(void)
{
	return last_bytes;
}

HIDDEN void operation_result(uint64_t bytes)
{
	last_bytes = bytes;
}

HIDDEN void operation_settings(struct operation *operation, const char *temporary)
{
	const char *set = atomic_load(&region_process.disk_backup_dir);
	operation->retain_cpu_backup = atomic_load(&region_process.retain_cpu_backup);
	if (set) {
		bool environment = set == region_config.disk_backup_dir;
		operation->disk_setting = environment ? "TMS_DISK_BACKUP_DIR" : "tms_set_disk_backup_dir";
		operation->disk_dir = set;
		return;
	}
	bool named = temporary && *temporary;
	operation->disk_setting = named ? "TMPDIR" : "";
	operation->disk_dir = named ? temporary : "/tmp";
}

static _Atomic int running; /* operations */

static void release(struct operation *operation)
{
	if (atomic_fetch_sub(&operation->users, 1) != 1)
		return;
	sem_destroy(&operation->done);
	free(operation);
}

HIDDEN int operation_allowed(void)
{
	if (!reporting)
		return SUCCESS;
	return error_fail(ERROR_NOT_SUPPORTED,
			  "called from a progress callback, whose own operation has not ended; call it when "
			  "that has returned");
}

/* Runs the operation on a thread of the Go runtime, and waits. The caller may never come back from waiting (it
 * is cancelled, or a handler jumps out), so what both use is not on its stack; some hundred bytes are then leaked. */
static int run(const struct operation *asked)
{
	int code = operation_allowed();
	if (code == SUCCESS)
		code = go_start(); /* in a child, malloc's lock may be held forever for another thread */
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
	int now = atomic_fetch_add(&running, 1) + 1;
	if (unlikely(now > OPERATIONS_AT_START && !threads_reserve(1, now))) {
		atomic_fetch_sub(&running, 1);
		go_leave(&saved);
		free(operation);
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "%d pauses and resumes at once need more threads than the process can make; raise "
				  "ulimit -u or the pids limit, or call again when others have ended; nothing has changed",
				  now);
	}
	sem_init(&operation->done, 0, 0);
	atomic_store(&operation->users, 2);
	tmsOperation(operation);
	go_leave(&saved);
	while (sem_wait(&operation->done) != 0 && errno == EINTR)
		;
	if (operation->error[0])
		error_set(operation->error);
	last_bytes = operation->bytes;
	code = operation->code;
	release(operation);
	return code;
}

HIDDEN int operation_apart(const struct operation *asked, uint64_t *result)
{
	uint64_t last = last_bytes;
	int code = run(asked);
	*result = last_bytes;
	last_bytes = last;
	return code;
}

HIDDEN int operation_import(int kind, const struct ipc_handle *handle, int (*device)(int *), uint64_t *result)
{
	enum { NOT_READY = 600, TRIES = 1000, BETWEEN = 10000 /* microseconds */ };
	struct operation asked = {.kind = kind, .ipc = *handle};
	int code = device(&asked.device);
	if (code != SUCCESS)
		return code;
	control_load();
	bool held = gate_is_shut();
	code = operation_apart(&asked, result);
	for (int tries = 0; code == NOT_READY && (held = held || gate_is_shut()) && tries < TRIES; tries++) {
		gate_wait();
		usleep(BETWEEN); /* the others are being resumed too, or about to be */
		code = operation_apart(&asked, result);
	}
	return code;
}

HIDDEN int operation_transition(int kind, const char *const *tags, const char *const *keep, double wait)
{
	last_bytes = 0;
	if (go_now() == GO_ASLEEP)
		return SUCCESS; /* nothing pausable was ever made */
	struct operation operation = {
		.kind = kind,
		.tags = tags,
		.keep = keep,
		.wait = wait,
		.force = kind == OPERATION_PAUSE_GATED && region_config.pause_force,
		.report = progress_now().callback != NULL,
	};
	operation_settings(&operation, getenv("TMPDIR"));
	return run(&operation);
}

HIDDEN void operation_finish(struct operation *operation, int code, const char *error, uint64_t bytes)
{
	operation->bytes = bytes;
	operation->code = code;
	snprintf(operation->error, THREAD_TEXT_SIZE, "%s", error);
	atomic_fetch_sub(&running, 1);
	sem_post(&operation->done);
	release(operation);
}

HIDDEN int operation_serve(void)
{
	if (go_now() != GO_DEAD) /* run reports why not */
		control_load();
	struct operation operation = {.kind = OPERATION_SERVE};
	operation_settings(&operation, NULL);
	return run(&operation);
}
