/* environment.c reads the TMS_* variables: the threads' defaults and the process's settings. docs/settings.md has them
 * all. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <locale.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Complaints wait here until the library is used: a preloaded bash should stay silent. */
static struct complaint {
	const char *variable;
	const char *value;    /* NULL if there is no such variable */
	const char *expected;
} complaints[16];
static int complaint_count;
static atomic_flag reported = ATOMIC_FLAG_INIT;

static void complain(const char *variable, const char *value, const char *expected)
{
	if (complaint_count < (int)(sizeof complaints / sizeof *complaints))
		complaints[complaint_count++] = (struct complaint){variable, value, expected};
}

/* Each parses a value that is not empty, and reports whether it is valid. An invalid value leaves *to as it was. */
typedef bool take(const char *value, void *to);
static take take_bool, take_backup, take_text, take_bytes, take_number, take_seconds, take_debug, take_shareable;

static bool no_inherit;

#define BOOLEAN "one of 1, 0, true, false, yes, no; using 0"
#define ONE_KIND "one of 1, 0, true, false, yes, no, and 0 while the backup of another kind is set; using 0"

/* In the order of reading. Variables without a function are read elsewhere, or not at all. */
static const struct variable {
	const char *name;
	take *take;
	void *to;
	const char *expected;
} variables[] = {
	{"TMS_INIT_ENABLE", take_bool, &region_defaults.active, BOOLEAN},
	{"TMS_INIT_TAG", take_text, &region_defaults.tag, ""},
	{"TMS_INIT_ENABLE_CPU_BACKUP", take_backup, (void *)REGION_HOST, BOOLEAN},
	{"TMS_INIT_ENABLE_DISK_BACKUP", take_backup, (void *)REGION_DISK, ONE_KIND},
	{"TMS_INIT_ENABLE_SPARSE_BACKUP", take_backup, (void *)REGION_SPARSE, ONE_KIND},
	{"TMS_INIT_ENABLE_PEER_BACKUP", take_backup, (void *)REGION_PEER, ONE_KIND},
	{"TMS_INIT_ENABLE_INCREMENTAL_BACKUP", take_bool, &region_defaults.incremental, BOOLEAN},
	{"TMS_INIT_CPU_BACKUP_BACKEND", region_parse_backend, &region_defaults.mmap, "pinned or mmap; using pinned"},
	{"TMS_INIT_POOL", take_text, &region_config.pool, ""},
	{"TMS_RETAIN_CPU_BACKUP", take_bool, (void *)&region_process.retain_cpu_backup, BOOLEAN},
	{"TMS_DISK_BACKUP_DIR", take_text, &region_config.disk_backup_dir, ""},
	{"TMS_DISK_BACKUP_CHUNK_MB", NULL, NULL, ""},
	{"TMS_EXTENT_BYTES", take_bytes, &region_config.extent_bytes, "a number of bytes; using 83886080"},
	{"TMS_RESUME_WAIT", take_seconds, (void *)&region_process.resume_wait,
	 "a time such as 30, 30s, 5m or 1h; using 0"},
	{"TMS_SIGNAL_WAIT", take_seconds, (void *)&region_config.signal_wait,
	 "a time such as 30, 30s, 5m or 1h; using 5s"},
	{"TMS_PAUSE_LINES", take_bool, &region_config.pause_lines,
	 "one of 1, 0, true, false, yes, no; using 1"},
	{"TMS_VERIFY", take_bool, &region_config.verify, BOOLEAN},
	{"TMS_DEBUG", take_debug, NULL, "poison, invariants, or both with a comma between"},
	{"TMS_SHAREABLE", take_shareable, NULL, "ipc, 1 or 0; as if it were not set"},
	{"TMS_COMMAND", NULL, NULL, ""},
	{"TMS_CRIU", NULL, NULL, ""},
	{"TMS_DRIVER_CHECKPOINT", NULL, NULL, ""},
	{"TMS_KEPT_BUDGET", NULL, NULL, ""},
	{"TMS_SERVE_TOKEN", NULL, NULL, ""},
	{"TMS_CONTROL", take_bool, &region_config.control, BOOLEAN},
	{"TMS_CONTROL_ANY_NAMESPACE", take_bool, &region_config.control_any_namespace, BOOLEAN},
	{"TMS_TRACE", NULL, NULL, ""},
	{"TMS_ACCOUNT", take_bool, &region_config.account, BOOLEAN},
	{"TMS_SHARE", take_bool, &region_config.share, BOOLEAN},
	{"TMS_SHARE_PRIORITY", take_number, &region_config.share_priority, "a finite number; using 0"},
	{"TMS_SHARE_AT_LEAST", take_seconds, (void *)&region_config.share_at_least,
	 "a time such as 30, 30s, 5m or 1h; using a tenth for swaps"},
	{"TMS_SHARE_HOST_BYTES", take_bytes, &region_config.share_host_limit, "a number of bytes; using no limit"},
	{"TMS_LIMIT_BYTES", take_bytes, &region_config.limit_bytes, "a number of bytes; using no limit"},
	{"TMS_EXCLUDE", take_text, &region_config.exclude, ""},
	{"TMS_PAUSE_FORCE", take_bool, &region_config.pause_force, BOOLEAN},
	{"TMS_LIBRARY", NULL, NULL, ""},
	{"TMS_VLLM", NULL, NULL, ""},
	{"TMS_SGLANG", NULL, NULL, ""},
	{"TMS_SGLANG_KEPT", NULL, NULL, ""},
	{"TMS_SGLANG_TRAINED", NULL, NULL, ""},
	{"TMS_NO_INHERIT", take_bool, &no_inherit, BOOLEAN},
};
enum { VARIABLES = sizeof variables / sizeof *variables, NAME_MOST = 64 };

static void unknown(const char *entry)
{
	char name[NAME_MOST + 1];
	snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
	const char *kept = region_intern(name); /* the environment is the host's to change */
	if (kept)
		complain(kept, NULL, NULL);
}

/* Finds misspelt variables, which would count as not set. */
AT_LOAD static void environment_names(void)
{
	for (char **entry = environ; entry && *entry; entry++) {
		if (strncmp(*entry, "TMS_", 4) != 0)
			continue;
		size_t length = strcspn(*entry, "=");
		int i = 0;
		while (i < VARIABLES && (strncmp(variables[i].name, *entry, length) != 0 || variables[i].name[length]))
			i++;
		if (i == VARIABLES)
			unknown(*entry);
	}
}

/* Returns 1 or 0, or -1 for any other text. */
AT_LOAD static int parse_bool(const char *value)
{
	static const char *const yes[] = {"1", "true", "yes"}, *const no[] = {"0", "false", "no"};
	for (int i = 0; i < 3; i++) {
		if (strcasecmp(value, yes[i]) == 0)
			return 1;
		if (strcasecmp(value, no[i]) == 0)
			return 0;
	}
	return -1;
}

AT_LOAD static bool take_bool(const char *value, void *to)
{
	int parsed = parse_bool(value);
	if (parsed >= 0)
		*(bool *)to = parsed;
	return parsed >= 0;
}

/* Contents wait in one place: the first variable that asks for one decides. */
AT_LOAD static bool take_backup(const char *value, void *kind)
{
	int parsed = parse_bool(value);
	if (parsed > 0 && region_defaults.backup != REGION_NONE)
		return false;
	if (parsed > 0)
		region_defaults.backup = (int)(uintptr_t)kind;
	return parsed >= 0;
}

AT_LOAD static bool take_text(const char *value, void *to)
{
	const char *kept = region_intern(value);
	if (kept)
		*(const char **)to = kept;
	return true;
}

AT_LOAD static bool take_bytes(const char *value, void *to)
{
	char *end;
	errno = 0;
	unsigned long long number = strtoull(value, &end, 10);
	if (errno != 0 || *end || *value < '0' || *value > '9')
		return false;
	*(uint64_t *)to = number;
	return true;
}

/* As strtod with a decimal point, whatever the program's locale has in its place: it may be set before this library is
 * loaded. */
AT_LOAD static double read_number(const char *text, char **end)
{
	locale_t point = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* allocates nothing for "C" */
	return point ? strtod_l(text, end, point) : strtod(text, end);
}

AT_LOAD static bool take_number(const char *value, void *to)
{
	char *end;
	double number = read_number(value, &end);
	if (*end || number - number != 0) /* JSON has only finite numbers */
		return false;
	*(double *)to = number;
	return true;
}

/* Seconds, minutes or hours. */
AT_LOAD static bool take_seconds(const char *value, void *to)
{
	static const char units[] = "smh";
	static const double seconds[] = {1, 60, 3600};
	char *unit;
	double number = read_number(value, &unit);
	const char *known = *unit ? strchr(units, *unit) : units;
	if (unit == value || !known || (*unit && unit[1]) || !(number >= 0 && number < 1e9))
		return false;
	*(_Atomic double *)to = number * seconds[known - units];
	return true;
}

/* Names separated by commas. */
AT_LOAD static bool take_debug(const char *value, void *to)
{
	(void)to;
	for (const char *name = value; *name;) {
		size_t length = strcspn(name, ",");
		if (length == 6 && strncmp(name, "poison", length) == 0)
			region_config.poison = true;
		else if (length == 10 && strncmp(name, "invariants", length) == 0)
			region_config.invariants = true;
		else if (length > 0)
			return false;
		name += length + (name[length] == ',');
	}
	return true;
}

/* ipc, or a boolean; where it is unset, preload/ipc.c decides. A program that exports a segment's descriptor itself
 * exports its whole extent, so segments then have extents of their own. */
AT_LOAD static bool take_shareable(const char *value, void *to)
{
	(void)to;
	const bool ipc = strcasecmp(value, "ipc") == 0;
	const int parsed = ipc ? 1 : parse_bool(value);
	region_config.shareable = (signed char)parsed;
	region_config.exportable = parsed > 0 && !ipc;
	if (region_config.exportable)
		region_config.extent_bytes = 0;
	return parsed >= 0;
}

HIDDEN AT_LOAD bool region_parse_backend(const char *text, void *mmap)
{
	if (!text || (strcasecmp(text, "pinned") != 0 && strcasecmp(text, "mmap") != 0))
		return false;
	*(bool *)mmap = strcasecmp(text, "mmap") == 0;
	return true;
}

AT_LOAD static void load(void)
{
	for (int i = 0; i < VARIABLES; i++) {
		const struct variable *v = &variables[i];
		const char *value = v->take ? getenv(v->name) : NULL;
		if (value && *value && !v->take(value, v->to))
			complain(v->name, value, v->expected);
	}
	region_process.disk_backup_dir = region_config.disk_backup_dir;
	const char *registers = getenv("NCCL_GRAPH_REGISTER"); /* read now: later others may be setting variables */
	region_config.nccl_registers = !registers || atoi(registers) != 0;
	environment_names();
}

/* The defaults must be read before anything is set: a constructor of another library may run before libtms.so's. */
AT_LOAD HIDDEN void region_load_environment(void)
{
	/* Not pthread_once, which makes a system call: a sandbox may kill the process for that at load. */
	static _Atomic int state; /* 1 while loading, then 2 */
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

/* Takes the named libraries out of a list for the loader, in place. Reports whether others are left. */
AT_LOAD static bool without(char *list, const char *const *libraries)
{
	static const char separators[] = " :\t\n";
	char *kept = list;
	for (const char *next = list; *next;) {
		size_t length = strcspn(next, separators), gap = next[length] != 0;
		bool ours = length == 0;
		for (const char *const *library = libraries; *library && !ours; library++) {
			size_t most = strlen(*library);
			ours = length >= most && strncmp(next + length - most, *library, most) == 0 &&
			       (length == most || next[length - most - 1] == '/');
		}
		if (!ours) {
			memmove(kept, next, length + gap);
			kept += length + gap;
		}
		next += length + gap;
	}
	bool any = kept > list;
	*kept = 0;
	return any;
}

/* Changes the array in place: a program may have its address from main, or from its start. */
AT_LOAD HIDDEN void region_leave_environment(const char *const *libraries)
{
	static const char preload[] = "LD_PRELOAD=";
	char **kept = environ, **entry = environ;
	if (!environ || !no_inherit)
		return;
	for (; *entry; entry++) {
		if (strncmp(*entry, preload, sizeof preload - 1) == 0 &&
		    !without(*entry + sizeof preload - 1, libraries))
			continue;
		else if (strncmp(*entry, "TMS_", 4) != 0)
			*kept++ = *entry;
	}
	while (kept < entry)
		*kept++ = NULL;
}

HIDDEN void region_report_environment(void (*log)(const char *))
{
	region_load_environment();
	if (complaint_count == 0 || atomic_flag_test_and_set(&reported))
		return;
	static char line[512]; /* once */
	for (int i = 0; i < complaint_count; i++) {
		struct complaint c = complaints[i];
		if (c.value)
			snprintf(line, sizeof line, "%s=%.100s is not understood; it takes %s", c.variable, c.value,
				 c.expected);
		else
			snprintf(line, sizeof line, "%s is no variable of this library and does nothing", c.variable);
		log(line);
	}
}
