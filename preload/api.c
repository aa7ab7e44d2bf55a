/* api has the tms_* functions for regions, pauses, resumes and their results; pool.c has those for pools. No setter
 * wakes Go. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "tms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TMS_VERSION // scripts/build.sh has it from pymodule/tms/_version.py
#define TMS_VERSION "unknown"
#endif

EXPORT const char *tms_version(void)
{
	return TMS_VERSION;
}

EXPORT void tms_set_interesting_region(bool on)
{
	static atomic_flag told = ATOMIC_FLAG_INIT;
	region_report_environment(error_log);
	if (unlikely(behind_cudart) && !atomic_flag_test_and_set(&told))
		error_log("the program is linked with libcudart before libtms.so, so that its memory is not pausable; link it "
			  "with $(tms --libs) before -lcudart, or preload libtms.so");
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

/* By enum region_backup, and as the older functions call them. */
static const char *const kinds[] = {"none", "host", "disk", "sparse", "peer"},
			 *const older[] = {"no", "cpu", "disk", "sparse", "peer"};

enum { DEVICES_MOST = 1 << 10 };

/* Returns less than 0 for an unknown kind. */
static int parse_backup(const char *kind)
{
	char *end;
	for (int i = REGION_NONE; i <= REGION_PEER; i++)
		if (strcmp(kind, kinds[i]) == 0)
			return i;
	if (strncmp(kind, "peer:", 5) != 0 || kind[5] < '0' || kind[5] > '9')
		return -1;
	unsigned long device = strtoul(kind + 5, &end, 10);
	return *end || device >= DEVICES_MOST ? -1 : REGION_PEER_OF((int)device);
}

EXPORT int tms_set_backup(const char *kind)
{
	int parsed = parse_backup(kind ? kind : kinds[REGION_NONE]);
	if (parsed < 0)
		return error_fail(ERROR_INVALID_VALUE,
				  "\"%.100s\" is no kind of backup; use none, host, sparse, disk, peer, or peer: and a device "
				  "ordinal",
				  kind);
	region_mine()->backup = parsed;
	return SUCCESS;
}

EXPORT const char *tms_get_backup(void)
{
	char name[sizeof "peer:" + 3 * sizeof(int)];
	int backup = region_get().backup;
	if (backup <= REGION_PEER)
		return kinds[backup];
	snprintf(name, sizeof name, "peer:%d", backup - REGION_PEER_OF(0));
	const char *kept = region_intern(name);
	return kept ? kept : kinds[REGION_PEER];
}

static int without_device(int backup)
{
	return backup < REGION_PEER ? backup : REGION_PEER;
}

/* Turning one kind on turns another off; turning off one that is not on changes nothing. */
static void enable(int kind, bool on)
{
	struct region_settings *mine = region_mine();
	int now = without_device(kind), before = without_device(mine->backup);
	if (on || now == before)
		mine->backup = on ? kind : REGION_NONE;
	if (on && before != now && before != REGION_NONE)
		error_fail(ERROR_INVALID_VALUE,
			   "kinds of backup exclude each other: %s backup is on now, and %s backup, which was, "
			   "is off",
			   older[now], older[before]);
}

static bool is_on(int kind)
{
	return without_device(region_get().backup) == kind;
}

EXPORT void tms_set_enable_cpu_backup(bool on) { enable(REGION_HOST, on); }
EXPORT bool tms_get_enable_cpu_backup(void) { return is_on(REGION_HOST); }
EXPORT void tms_set_enable_disk_backup(bool on) { enable(REGION_DISK, on); }
EXPORT bool tms_get_enable_disk_backup(void) { return is_on(REGION_DISK); }
EXPORT void tms_set_enable_incremental_backup(bool on) { region_mine()->incremental = on; }
EXPORT bool tms_get_enable_incremental_backup(void) { return region_get().incremental; }
EXPORT const char *tms_get_cpu_backup_backend(void) { return region_get().mmap ? "mmap" : "pinned"; }
EXPORT void tms_set_retain_cpu_backup(bool on) { atomic_store(&region_process.retain_cpu_backup, on); }
EXPORT bool tms_get_retain_cpu_backup(void) { return atomic_load(&region_process.retain_cpu_backup); }

EXPORT double tms_get_resume_wait(void) { return atomic_load(&region_process.resume_wait); }

EXPORT int tms_set_resume_wait(double seconds)
{
	if (!(seconds >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", seconds);
	atomic_store(&region_process.resume_wait, seconds);
	return SUCCESS;
}

EXPORT void tms_set_cpu_backup_backend(const char *name)
{
	if (!region_parse_backend(name, &region_mine()->mmap))
		error_fail(ERROR_INVALID_VALUE, "cpu backup backend \"%.100s\" is unknown; use pinned or mmap",
			   name ? name : "NULL");
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

EXPORT uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size)
{
	if (!arena_contains(address) && !atomic_load(&handles_tracked)) {
		error_fail(ERROR_INVALID_VALUE, "%p is not in a segment of this library", (const void *)address);
		return NULL;
	}
	uint8_t *copy = NULL;
	(void)IN_GO((copy = (uint8_t *)tmsBackupPointer((void *)address, size), SUCCESS));
	return copy;
}

EXPORT size_t tms_stats_json(char *buffer, size_t capacity)
{
	static const char asleep[] = "{\"version\":\"" TMS_VERSION "\",\"started\":false,\"everything\":false,"
				     "\"capturing\":false,\"host_available_bytes\":null,\"disk_directory\":\"\","
				     "\"devices\":[],\"waiting\":[],\"pools\":null}";
	char *text = NULL;
	bool told = go_now() == GO_AWAKE &&
		    IN_GO((text = tmsStats((char *)TMS_VERSION, getenv("TMPDIR")), SUCCESS)) == SUCCESS;
	int length = snprintf(buffer, buffer ? capacity : 0, "%s", text ? text : told ? "{}" : asleep);
	free(text);
	return (size_t)length;
}

EXPORT int tms_pause(const char *tag)
{
	return operation_transition(OPERATION_PAUSE, (struct operation_transition){.tags = ONE_TAG(tag), .wait = -1});
}

EXPORT int tms_pause_within(const char *tag, double seconds)
{
	if (!(seconds >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", seconds);
	return operation_transition(OPERATION_PAUSE, (struct operation_transition){.tags = ONE_TAG(tag), .wait = seconds});
}

EXPORT int tms_pause_gated(const char *tag, double timeout)
{
	if (!(timeout >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", timeout);
	const char *unusable = gate_unusable();
	if (unusable)
		return error_fail(ERROR_NOT_SUPPORTED, "gated pause: %s; nothing has changed", unusable);
	return operation_transition(OPERATION_PAUSE_GATED,
				    (struct operation_transition){.tags = ONE_TAG(tag), .wait = timeout});
}

EXPORT int tms_discard(const char *tag)
{
	return operation_transition(OPERATION_DISCARD, (struct operation_transition){.tags = ONE_TAG(tag), .wait = -1});
}

static const char *const no_tags[] = {NULL};

EXPORT int tms_pause_tags(const char *const *tags, const char *const *discarded)
{
	return operation_transition(OPERATION_PAUSE, (struct operation_transition){
							     .tags = tags ? tags : no_tags, .discarded = discarded, .wait = -1});
}

EXPORT int tms_pause_everything(double timeout)
{
	uint64_t bytes = 0;
	operation_result(0);
	int code = everything_pause(timeout, &bytes);
	operation_result(bytes);
	return code;
}

/* NULL tags are all tags. Seconds below 0 mean the wait that tms_set_resume_wait has set. */
static int resume_as(struct operation_transition asked)
{
	const double seconds = asked.wait;
	int code = SUCCESS;
	if (checkpoint_asked() && go_now() == GO_AWAKE)
		code = operation_await(seconds);
	if (code == SUCCESS) /* any driver call would wait for that */
		code = everything_restore(seconds < 0 ? tms_get_resume_wait() : seconds);
	if (code != SUCCESS)
		return code;
	return operation_transition(OPERATION_RESUME, asked);
}

static int resume(const char *const *tags, double seconds)
{
	return resume_as((struct operation_transition){.tags = tags, .wait = seconds});
}

static int resume_within(const char *const *tags, double seconds)
{
	if (!(seconds >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", seconds);
	return resume(tags, seconds);
}

EXPORT int tms_resume_within(const char *tag, double seconds)
{
	return resume_within(ONE_TAG(tag), seconds);
}

EXPORT int tms_resume(const char *tag)
{
	return resume(ONE_TAG(tag), -1);
}

EXPORT int tms_resume_tags(const char *const *tags, double seconds)
{
	return resume_within(tags ? tags : no_tags, seconds);
}

EXPORT int tms_resume_in_order(const char *const *tags, double seconds, const tms_ordered *order, size_t count,
			       uint64_t *number)
{
	static _Atomic uint64_t orders;
	if (number)
		*number = 0;
	if (!(seconds >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", seconds);
	if (!number || (!order && count > 0))
		return error_fail(ERROR_INVALID_VALUE, "%s is NULL", number ? "order" : "number");
	for (size_t i = 0; i < count; i++)
		if (order[i].step < 0)
			return error_fail(ERROR_INVALID_VALUE, "a step is %d; the first is 0", order[i].step);
	*number = atomic_fetch_add(&orders, 1) + 1;
	return resume_as((struct operation_transition){.tags = tags, .wait = seconds, .ordered = order,
						       .ordered_count = count, .order = *number});
}

EXPORT uint64_t tms_paused_by(const char *tag)
{
	uint64_t last = 0;
	if (tag && go_now() == GO_AWAKE)
		(void)IN_GO((last = tmsPausedBy((char *)tag), SUCCESS));
	return last;
}

EXPORT uint64_t tms_transitions(void)
{
	uint64_t count = 0;
	if (go_now() == GO_AWAKE)
		(void)IN_GO((count = tmsTransitions(), SUCCESS));
	return count;
}

EXPORT int tms_pause_since(uint64_t transition)
{
	return operation_transition(OPERATION_PAUSE, (struct operation_transition){.since = transition, .wait = -1});
}

EXPORT int tms_resume_since(uint64_t transition)
{
	return operation_transition(OPERATION_RESUME, (struct operation_transition){.since = transition, .wait = -1});
}

EXPORT int tms_live(const void *address, size_t size, const tms_range *ranges, size_t count)
{
	if (!ranges && count > 0)
		return error_fail(ERROR_INVALID_VALUE, "ranges is NULL");
	if (!address && go_now() == GO_ASLEEP)
		return SUCCESS;
	if (address && !arena_contains(address) && !atomic_load(&handles_tracked))
		return error_fail(ERROR_INVALID_VALUE, "%p is in no region", address);
	size_t *copy = count ? calloc(count, 2 * sizeof *copy) : NULL; /* the array may lie behind a barrier */
	if (count && !copy)
		return error_fail(ERROR_MEMORY_ALLOCATION, "no host memory for %zu ranges", count);
	if (count)
		memcpy(copy, ranges, count * 2 * sizeof *copy);
	int code = IN_GO(tmsLive((void *)address, size, copy, count));
	free(copy);
	return code;
}

EXPORT int tms_prepare(const char *tag, bool wait)
{
	if (wait)
		return operation_transition(OPERATION_PREPARE, (struct operation_transition){.tags = ONE_TAG(tag)});
	if (go_now() == GO_ASLEEP)
		return SUCCESS;
	return IN_GO(tmsPrepare((char *)tag));
}

EXPORT int tms_serve(void)
{
	return operation_serve();
}

EXPORT int tms_trim(void)
{
	return operation_transition(OPERATION_TRIM, (struct operation_transition){0});
}
