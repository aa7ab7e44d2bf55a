/* api has the tms_* functions of regions, pauses and resumes, and what they tell; those of pools are in pool.c. No
 * setter wakes Go. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "region.h"
#include "tms.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef TMS_VERSION // scripts/build.sh has it from pymodule/tms/_version.py
#define TMS_VERSION "unknown"
#endif

EXPORT const char *tms_version(void)
{
	return TMS_VERSION;
}

EXPORT void tms_set_interesting_region(bool on)
{
	region_report_environment(error_log);
	region_set_active(on);
}

EXPORT bool tms_get_interesting_region(void)
{
	return region_wanted();
}

EXPORT void tms_set_excluded(bool on)
{
	region_set_excluded(on);
}

EXPORT bool tms_get_excluded(void)
{
	return region_thread.excluded;
}

EXPORT void tms_set_current_tag(const char *tag)
{
	if (!region_set_tag(tag))
		error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to keep the tag's name; the tag is as before");
}

EXPORT const char *tms_get_current_tag(void)
{
	return region_get().tag;
}

static void set_backup(enum region_backup kind, bool on)
{
	static const char *const names[] = {"no", "cpu", "disk", "peer"};
	enum region_backup before = region_set_backup(kind, on);
	if (before != REGION_NO_BACKUP)
		error_fail(ERROR_INVALID_VALUE,
			   "cpu, disk and peer backup exclude each other: %s backup is on now, and %s backup, which was, "
			   "is off",
			   names[kind], names[before]);
}

EXPORT void tms_set_enable_cpu_backup(bool on)
{
	set_backup(REGION_CPU_BACKUP, on);
}

EXPORT bool tms_get_enable_cpu_backup(void)
{
	return region_get().backup == REGION_CPU_BACKUP;
}

EXPORT void tms_set_enable_disk_backup(bool on)
{
	set_backup(REGION_DISK_BACKUP, on);
}

EXPORT bool tms_get_enable_disk_backup(void)
{
	return region_get().backup == REGION_DISK_BACKUP;
}

EXPORT void tms_set_enable_peer_backup(bool on, int device)
{
	if (on && device < -1) {
		error_fail(ERROR_INVALID_VALUE, "%d is no device ordinal; -1 stands for any device", device);
		return;
	}
	if (on)
		region_set_peer(device);
	set_backup(REGION_PEER_BACKUP, on);
}

EXPORT bool tms_get_enable_peer_backup(int *device)
{
	struct region_settings settings = region_get();
	bool on = settings.backup == REGION_PEER_BACKUP;
	if (device && on)
		*device = settings.peer;
	return on;
}

EXPORT void tms_set_enable_incremental_backup(bool on)
{
	region_set_incremental(on);
}

EXPORT bool tms_get_enable_incremental_backup(void)
{
	return region_get().incremental;
}

EXPORT void tms_set_cpu_backup_backend(const char *name)
{
	bool mmap;
	if (region_parse_backend(name, &mmap))
		region_set_mmap(mmap);
	else
		error_fail(ERROR_INVALID_VALUE, "cpu backup backend \"%.100s\" is unknown; use pinned or mmap",
			   name ? name : "NULL");
}

EXPORT const char *tms_get_cpu_backup_backend(void)
{
	return region_get().mmap ? "mmap" : "pinned";
}

EXPORT void tms_set_disk_backup_dir(const char *path)
{
	const char *kept = path && *path ? region_intern(path) : NULL;
	if (path && *path && !kept)
		error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to keep the path; the directory is as before");
	else
		atomic_store(&region_process.disk_backup_dir, kept);
}

EXPORT void set_memory_margin_bytes(uint64_t bytes)
{
	__atomic_store_n(&region_process.margin_bytes, bytes, __ATOMIC_SEQ_CST);
}

EXPORT void tms_set_retain_cpu_backup(bool on)
{
	atomic_store(&region_process.retain_cpu_backup, on);
}

EXPORT bool tms_get_retain_cpu_backup(void)
{
	return atomic_load(&region_process.retain_cpu_backup);
}

EXPORT uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size)
{
	if (!arena_contains(address) && !atomic_load(&mapping_tracked)) {
		error_fail(ERROR_INVALID_VALUE, "%p is not in a segment of this library", (const void *)address);
		return NULL;
	}
	uint8_t *copy = NULL;
	(void)IN_GO((copy = (uint8_t *)tmsBackupPointer((void *)address, size), SUCCESS));
	return copy;
}

EXPORT size_t tms_stats_json(char *buffer, size_t capacity)
{
	char *text = NULL;
	if (go_now() == GO_AWAKE && IN_GO((text = tmsStats((char *)TMS_VERSION, getenv("TMPDIR")), SUCCESS)) == SUCCESS) {
		int length = snprintf(buffer, buffer ? capacity : 0, "%s", text ? text : "{}");
		free(text);
		return (size_t)length;
	}
	int length = snprintf(buffer, buffer ? capacity : 0,
			      "{\"version\":\"" TMS_VERSION "\",\"started\":false,\"everything\":false,"
			      "\"capturing\":false,\"host_available_bytes\":null,\"disk_directory\":\"\","
			      "\"devices\":[],\"waiting\":[],\"pools\":null}");
	return (size_t)length;
}

/* What tms_set_progress_callback was given, replaced as one. */
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
	if (atomic_load(&progress_readers) == 0) /* else one may be reading it: 16 bytes are left to the process */
		free(before);
}

/* The thread that is in the callback, for which an operation waits: it must not wait for one. */
static __thread bool reporting __attribute__((tls_model("initial-exec")));

HIDDEN void operation_progress(int device, const char *kind, uint64_t done, uint64_t total)
{
	struct progress now = progress_now();
	if (!now.callback || gate_is_shut()) /* it may wait for a lock of a thread that is held up */
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

static int refuse_reporting(void)
{
	return error_fail(ERROR_NOT_SUPPORTED,
			  "called from a progress callback, whose own operation has not ended; call it when "
			  "that has returned");
}

/* Runs the operation on a thread of the Go runtime, and waits. The caller may never come back from waiting (it
 * is cancelled, or a handler jumps out), so what both know is not on its stack; some hundred bytes then stay. */
static int run(const struct operation *asked)
{
	if (reporting)
		return refuse_reporting();
	int code = go_start(); /* in a child another thread's lock of malloc may be held for ever */
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

HIDDEN int operation_import(const struct operation *asked, uint64_t *result)
{
	enum { NOT_READY = 600, TRIES = 1000, BETWEEN = 10000 /* microseconds */ };
	bool held = gate_is_shut();
	int code = operation_apart(asked, result);
	for (int tries = 0; code == NOT_READY && (held = held || gate_is_shut()) && tries < TRIES; tries++) {
		gate_wait();
		usleep(BETWEEN); /* the others are resumed, too, or about to be */
		code = operation_apart(asked, result);
	}
	return code;
}

static int transition(int kind, const char *tag, double wait)
{
	last_bytes = 0;
	if (go_now() == GO_ASLEEP)
		return SUCCESS; /* nothing pausable was ever made */
	struct operation operation = {
		.kind = kind,
		.tag = tag,
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

EXPORT int tms_pause(const char *tag)
{
	return transition(OPERATION_PAUSE, tag, -1);
}

EXPORT int tms_pause_within(const char *tag, double seconds)
{
	if (!(seconds >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", seconds);
	return transition(OPERATION_PAUSE, tag, seconds);
}

EXPORT int tms_pause_gated(const char *tag, double timeout)
{
	if (!(timeout >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", timeout);
	const char *unusable = gate_unusable();
	if (unusable)
		return error_fail(ERROR_NOT_SUPPORTED, "gated pause: %s; nothing has changed", unusable);
	return transition(OPERATION_PAUSE_GATED, tag, timeout);
}

EXPORT int tms_discard(const char *tag)
{
	return transition(OPERATION_DISCARD, tag, -1);
}

EXPORT int tms_pause_everything(double timeout)
{
	last_bytes = 0;
	if (reporting)
		return refuse_reporting();
	uint64_t bytes = 0;
	int code = everything_pause(timeout, &bytes);
	last_bytes = bytes;
	return code;
}

static int resume(const char *tag, double seconds)
{
	if (reporting)
		return refuse_reporting();
	int code = everything_restore(seconds > 0 ? seconds : 0); /* any call of the driver would wait for that */
	return code == SUCCESS ? transition(OPERATION_RESUME, tag, seconds) : code;
}

EXPORT int tms_resume_within(const char *tag, double seconds)
{
	if (!(seconds >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", seconds);
	return resume(tag, seconds);
}

EXPORT int tms_resume(const char *tag)
{
	return resume(tag, -1);
}

EXPORT int tms_prepare(const char *tag, bool wait)
{
	if (wait)
		return transition(OPERATION_PREPARE, tag, 0);
	if (go_now() == GO_ASLEEP)
		return SUCCESS;
	return IN_GO(tmsPrepare((char *)tag));
}

EXPORT int tms_serve(void)
{
	if (go_now() != GO_DEAD) /* run says why not */
		control_load();
	struct operation operation = {.kind = OPERATION_SERVE};
	operation_settings(&operation, NULL);
	return run(&operation);
}

EXPORT int tms_trim(void)
{
	return transition(OPERATION_TRIM, NULL, 0);
}
