#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HIDDEN __attribute__((visibility("hidden")))

__thread struct region_settings region_delta
	__attribute__((tls_model("initial-exec"), visibility("hidden")));
HIDDEN struct region_settings region_defaults = {.tag = "default"};
HIDDEN struct region_process region_process = {.disk_backup_chunk_mb = 64, .extent_bytes = 64 << 20};

/* Names live for ever, so the lists only grow: no lock that fork could leave held. A program may have a name
 * for each of its steps: the lists stay short up to a hundred thousand. */
struct name {
	struct name *next;
	char text[];
};
static _Atomic(struct name *) names[1 << 13];

/* FNV-1a. */
static uint32_t hash(const char *text)
{
	uint32_t sum = 2166136261;
	for (; *text; text++)
		sum = (sum ^ (unsigned char)*text) * 16777619;
	return sum;
}

HIDDEN const char *region_intern(const char *text)
{
	_Atomic(struct name *) *list = &names[hash(text) % (sizeof names / sizeof *names)];
	struct name *head = atomic_load_explicit(list, memory_order_acquire);
	for (struct name *n = head; n; n = n->next)
		if (strcmp(n->text, text) == 0)
			return n->text;
	size_t size = strlen(text) + 1;
	struct name *fresh = malloc(sizeof *fresh + size);
	if (!fresh)
		return NULL;
	memcpy(fresh->text, text, size);
	fresh->next = head;
	while (!atomic_compare_exchange_weak_explicit(list, &fresh->next, fresh,
						      memory_order_acq_rel, memory_order_acquire)) {
		/* Others added names meanwhile: ours may be among them. */
		for (struct name *n = fresh->next; n && n != head; n = n->next)
			if (strcmp(n->text, text) == 0) {
				free(fresh);
				return n->text;
			}
		head = fresh->next;
	}
	return fresh->text;
}

/* Complaints wait here until the library is used: a preloaded bash should stay silent. */
static struct complaint {
	const char *variable;
	const char *value;
	const char *expected;
} complaints[12];
static int complaint_count;
static atomic_flag reported = ATOMIC_FLAG_INIT;

static void complain(const char *variable, const char *value, const char *expected)
{
	if (complaint_count < (int)(sizeof complaints / sizeof *complaints))
		complaints[complaint_count++] = (struct complaint){variable, value, expected};
}

AT_LOAD static bool environment_bool(const char *variable)
{
	const char *value = getenv(variable);
	if (!value || !*value)
		return false;
	static const char *const yes[] = {"1", "true", "yes"}, *const no[] = {"0", "false", "no"};
	for (int i = 0; i < 3; i++) {
		if (strcasecmp(value, yes[i]) == 0)
			return true;
		if (strcasecmp(value, no[i]) == 0)
			return false;
	}
	complain(variable, value, "one of 1, 0, true, false, yes, no; using 0");
	return false;
}

AT_LOAD static uint64_t environment_number(const char *variable, uint64_t otherwise, uint64_t least, uint64_t most,
				   const char *expected)
{
	const char *value = getenv(variable);
	if (!value || !*value)
		return otherwise;
	char *end;
	errno = 0;
	unsigned long long number = strtoull(value, &end, 10);
	if (errno == 0 && *end == 0 && *value >= '0' && *value <= '9' && number >= least && number <= most)
		return number;
	complain(variable, value, expected);
	return otherwise;
}

/* TMS_DEBUG: names separated by commas. */
AT_LOAD static void environment_debug(void)
{
	const char *value = getenv("TMS_DEBUG");
	for (const char *name = value; name && *name;) {
		size_t length = strcspn(name, ",");
		if (length == 6 && strncmp(name, "poison", length) == 0)
			region_process.poison = true;
		else if (length == 10 && strncmp(name, "invariants", length) == 0)
			region_process.invariants = true;
		else if (length > 0) {
			complain("TMS_DEBUG", value, "poison, invariants, or both with a comma between");
			return;
		}
		name += length + (name[length] == ',');
	}
}

HIDDEN bool region_parse_backend(const char *text, enum region_backend *backend)
{
	if (text && strcasecmp(text, "pinned") == 0)
		*backend = REGION_PINNED;
	else if (text && strcasecmp(text, "mmap") == 0)
		*backend = REGION_MMAP;
	else
		return false;
	return true;
}

HIDDEN const char *region_backend_name(enum region_backend backend)
{
	return backend == REGION_MMAP ? "mmap" : "pinned";
}

AT_LOAD static void load(void)
{
	region_defaults.active = environment_bool("TMS_INIT_ENABLE");
	region_defaults.cpu_backup = environment_bool("TMS_INIT_ENABLE_CPU_BACKUP");
	region_defaults.disk_backup = environment_bool("TMS_INIT_ENABLE_DISK_BACKUP");
	if (region_defaults.cpu_backup && region_defaults.disk_backup) {
		complain("TMS_INIT_ENABLE_DISK_BACKUP", getenv("TMS_INIT_ENABLE_DISK_BACKUP"),
			 "0 while TMS_INIT_ENABLE_CPU_BACKUP is set; using 0");
		region_defaults.disk_backup = false;
	}
	region_defaults.incremental = environment_bool("TMS_INIT_ENABLE_INCREMENTAL_BACKUP");
	region_process.retain_cpu_backup = environment_bool("TMS_RETAIN_CPU_BACKUP");
	region_process.verify = environment_bool("TMS_VERIFY");
	region_process.shareable = environment_bool("TMS_SHAREABLE");
	environment_debug();

	const char *value = getenv("TMS_INIT_CPU_BACKUP_BACKEND");
	enum region_backend backend = REGION_PINNED;
	if (value && *value && !region_parse_backend(value, &backend))
		complain("TMS_INIT_CPU_BACKUP_BACKEND", value, "pinned or mmap; using pinned");
	region_defaults.backend = backend;

	value = getenv("TMS_EXCLUDE");
	if (value && *value)
		region_process.exclude = region_intern(value);

	value = getenv("TMS_DISK_BACKUP_DIR");
	if (value && *value)
		region_process.disk_backup_dir = region_process.disk_backup_dir_at_start = region_intern(value);

	region_process.disk_backup_chunk_mb = (unsigned)environment_number(
		"TMS_DISK_BACKUP_CHUNK_MB", 64, 1, 4096, "a number of MiB from 1 to 4096; using 64");
	region_process.extent_bytes = environment_number(
		"TMS_EXTENT_BYTES", 64 << 20, 0, UINT64_MAX, "a number of bytes; using 67108864");
	region_process.host_pool_bytes = environment_number(
		"TMS_HOST_POOL_BYTES", 0, 0, UINT64_MAX, "a number of bytes; using 0");
}

/* Settings are differences from the defaults, so these must be known before the first is made. A
 * constructor of another library may come before ours. */
AT_LOAD HIDDEN void region_load_environment(void)
{
	/* Not pthread_once, which makes a system call: a sandbox may kill for that at load. */
	static _Atomic int state; /* 1: loading; 2: loaded */
	int before = 0;
	if (atomic_load_explicit(&state, memory_order_acquire) == 2)
		return;
	if (atomic_compare_exchange_strong(&state, &before, 1)) {
		load();
		atomic_store_explicit(&state, 2, memory_order_release);
	}
	while (atomic_load_explicit(&state, memory_order_acquire) != 2)
		sched_yield();
}

HIDDEN void region_report_environment(void (*log)(const char *))
{
	region_load_environment();
	if (complaint_count == 0 || atomic_flag_test_and_set(&reported))
		return;
	for (int i = 0; i < complaint_count; i++) {
		char line[512];
		snprintf(line, sizeof line, "%s=%.100s is not understood; it takes %s", complaints[i].variable,
			 complaints[i].value, complaints[i].expected);
		log(line);
	}
}

HIDDEN struct region_settings region_get(void)
{
	region_load_environment();
	return (struct region_settings){
		.tag = region_delta.tag ? region_delta.tag : region_defaults.tag,
		.active = region_active(),
		.cpu_backup = region_delta.cpu_backup ^ region_defaults.cpu_backup,
		.disk_backup = region_delta.disk_backup ^ region_defaults.disk_backup,
		.incremental = region_delta.incremental ^ region_defaults.incremental,
		.backend = region_delta.backend ^ region_defaults.backend,
		.peer = region_delta.peer,
		.wanted = region_wanted(),
		.excluded = region_delta.excluded,
	};
}

HIDDEN bool region_wanted(void)
{
	region_load_environment();
	return region_delta.wanted ^ (region_defaults.active & 1);
}

static void settle(void)
{
	region_delta.active = (region_wanted() && !region_delta.excluded) ^ (region_defaults.active & 1);
}

HIDDEN void region_set_active(bool on)
{
	region_load_environment();
	region_delta.wanted = on ^ (region_defaults.active & 1);
	settle();
}

HIDDEN void region_set_excluded(bool on)
{
	region_load_environment();
	region_delta.excluded = on;
	settle();
}

HIDDEN void region_set_cpu_backup(bool on)
{
	region_load_environment();
	region_delta.cpu_backup = on ^ region_defaults.cpu_backup;
}

HIDDEN void region_set_disk_backup(bool on)
{
	region_load_environment();
	region_delta.disk_backup = on ^ region_defaults.disk_backup;
}

HIDDEN void region_set_incremental(bool on)
{
	region_load_environment();
	region_delta.incremental = on ^ region_defaults.incremental;
}

HIDDEN bool region_set_peer(bool on, int device)
{
	if (on && (device < -1 || device > UINT8_MAX - 2))
		return false;
	region_delta.peer = on ? (unsigned char)(device + 2) : 0;
	return true;
}

HIDDEN void region_set_backend(enum region_backend backend)
{
	region_load_environment();
	region_delta.backend = (unsigned char)backend ^ region_defaults.backend;
}

HIDDEN bool region_set_tag(const char *tag)
{
	if (!tag || !*tag || strcmp(tag, region_defaults.tag) == 0) {
		region_delta.tag = NULL;
		return true;
	}
	const char *kept = region_intern(tag);
	if (kept)
		region_delta.tag = kept;
	return kept != NULL;
}
