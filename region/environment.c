/* environment.c reads the TMS_* variables: what threads begin with, and what holds for the process. docs/settings.md
 * has them all. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
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
	const char *value;    /* NULL: there is no such variable */
	const char *expected; /* or the name that is nearest */
} complaints[16];
static int complaint_count;
static atomic_flag reported = ATOMIC_FLAG_INIT;

static void complain(const char *variable, const char *value, const char *expected)
{
	if (complaint_count < (int)(sizeof complaints / sizeof *complaints))
		complaints[complaint_count++] = (struct complaint){variable, value, expected};
}

static const char *const variables[] = {
	"TMS_INIT_ENABLE",
	"TMS_INIT_TAG",
	"TMS_INIT_ENABLE_CPU_BACKUP",
	"TMS_INIT_ENABLE_INCREMENTAL_BACKUP",
	"TMS_INIT_ENABLE_DISK_BACKUP",
	"TMS_INIT_ENABLE_PEER_BACKUP",
	"TMS_INIT_CPU_BACKUP_BACKEND",
	"TMS_INIT_POOL",
	"TMS_RETAIN_CPU_BACKUP",
	"TMS_HOST_POOL_BYTES",
	"TMS_DISK_BACKUP_DIR",
	"TMS_DISK_BACKUP_CHUNK_MB",
	"TMS_EXTENT_BYTES",
	"TMS_VERIFY",
	"TMS_DEBUG",
	"TMS_SHAREABLE",
	"TMS_COMMAND",
	"TMS_CONTROL",
	"TMS_TRACE",
	"TMS_ACCOUNT",
	"TMS_EXCLUDE",
	"TMS_PAUSE_FORCE",
	"TMS_LIBRARY",
	"TMS_VLLM",
	"TMS_NO_INHERIT",
};
enum { VARIABLES = sizeof variables / sizeof *variables, NAME_MOST = 64 };

/* What a variable's name begins with that waits for region_leave_environment: tms run has set it anew. */
static const char set_aside[] = "TMS_BEFORE_";

/* How many characters to put in, leave out or exchange make one name the other. (Levenshtein) */
static int distance(const char *from, const char *to)
{
	int row[NAME_MOST + 1], length = (int)strlen(to);
	for (int i = 0; i <= length; i++)
		row[i] = i;
	for (int i = 0; from[i]; i++) {
		int diagonal = row[0]++;
		for (int j = 0; j < length; j++) {
			int least = diagonal + (from[i] != to[j]);
			diagonal = row[j + 1];
			if (least > diagonal + 1)
				least = diagonal + 1;
			if (least > row[j] + 1)
				least = row[j] + 1;
			row[j + 1] = least;
		}
	}
	return row[length];
}

static void unknown(const char *entry)
{
	char name[NAME_MOST + 1];
	snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
	const char *nearest = variables[0], *kept = region_intern(name); /* the environment is the host's to change */
	for (int i = 1; i < VARIABLES; i++)
		if (distance(name, variables[i]) < distance(name, nearest))
			nearest = variables[i];
	if (kept)
		complain(kept, NULL, nearest);
}

/* A misspelt variable would be one that is not set. */
AT_LOAD static void environment_names(void)
{
	for (char **entry = environ; entry && *entry; entry++) {
		if (strncmp(*entry, "TMS_", 4) != 0)
			continue;
		size_t length = strcspn(*entry, "=");
		int i = 0;
		if (strncmp(*entry, set_aside, sizeof set_aside - 1) == 0)
			continue;
		while (i < VARIABLES && (strncmp(variables[i], *entry, length) != 0 || variables[i][length]))
			i++;
		if (i == VARIABLES)
			unknown(*entry);
	}
}

/* 1 or 0; -1: it is neither. */
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

AT_LOAD static bool environment_bool(const char *variable)
{
	const char *value = getenv(variable);
	int parsed = value && *value ? parse_bool(value) : 0;
	if (parsed < 0)
		complain(variable, value, "one of 1, 0, true, false, yes, no; using 0");
	return parsed > 0;
}

/* TMS_SHAREABLE: ipc, or a boolean; unset, it is for preload/ipc.c to say. Who is given a descriptor by the program can be
 * told nothing of neighbours. */
AT_LOAD static void environment_shareable(void)
{
	const char *value = getenv("TMS_SHAREABLE");
	const bool set = value && *value, ipc = set && strcasecmp(value, "ipc") == 0;
	const int parsed = set && !ipc ? parse_bool(value) : -1;
	if (set && !ipc && parsed < 0)
		complain("TMS_SHAREABLE", value, "ipc, 1 or 0; as if it were not set");
	region_config.shareable = ipc ? 1 : parsed;
	region_config.exportable = parsed > 0;
	if (region_config.exportable)
		region_config.extent_bytes = 0;
	const char *registers = getenv("NCCL_GRAPH_REGISTER"); /* read now: later others may be setting variables */
	region_config.nccl_registers = !registers || atoi(registers) != 0;
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
			region_config.poison = true;
		else if (length == 10 && strncmp(name, "invariants", length) == 0)
			region_config.invariants = true;
		else if (length > 0) {
			complain("TMS_DEBUG", value, "poison, invariants, or both with a comma between");
			return;
		}
		name += length + (name[length] == ',');
	}
}

HIDDEN bool region_parse_backend(const char *text, bool *mmap)
{
	if (!text || (strcasecmp(text, "pinned") != 0 && strcasecmp(text, "mmap") != 0))
		return false;
	*mmap = strcasecmp(text, "mmap") == 0;
	return true;
}

AT_LOAD static const char *environment_text(const char *variable)
{
	const char *value = getenv(variable);
	return value && *value ? region_intern(value) : NULL;
}

/* Contents are kept in one place: the first that is asked for. */
AT_LOAD static void environment_backup(void)
{
	static const struct {
		const char *variable, *refused;
		enum region_backup kind;
	} kinds[] = {
		{"TMS_INIT_ENABLE_CPU_BACKUP", NULL, REGION_CPU_BACKUP},
		{"TMS_INIT_ENABLE_DISK_BACKUP", "0 while TMS_INIT_ENABLE_CPU_BACKUP is set; using 0", REGION_DISK_BACKUP},
		{"TMS_INIT_ENABLE_PEER_BACKUP", "0 while the backup of another kind is set; using 0", REGION_PEER_BACKUP},
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		if (!environment_bool(kinds[i].variable))
			continue;
		if (region_defaults.backup == REGION_NO_BACKUP)
			region_defaults.backup = kinds[i].kind;
		else
			complain(kinds[i].variable, getenv(kinds[i].variable), kinds[i].refused);
	}
}

AT_LOAD static void load(void)
{
	region_defaults.active = environment_bool("TMS_INIT_ENABLE");
	const char *tag = getenv("TMS_INIT_TAG");
	if (tag && *tag && (tag = region_intern(tag)))
		region_defaults.tag = tag;
	environment_backup();
	region_defaults.incremental = environment_bool("TMS_INIT_ENABLE_INCREMENTAL_BACKUP");
	const char *value = getenv("TMS_INIT_CPU_BACKUP_BACKEND");
	if (value && *value && !region_parse_backend(value, &region_defaults.mmap))
		complain("TMS_INIT_CPU_BACKUP_BACKEND", value, "pinned or mmap; using pinned");

	region_process.retain_cpu_backup = environment_bool("TMS_RETAIN_CPU_BACKUP");
	region_config.verify = environment_bool("TMS_VERIFY");
	region_config.pause_force = environment_bool("TMS_PAUSE_FORCE");
	region_config.account = environment_bool("TMS_ACCOUNT");
	region_config.control = environment_bool("TMS_CONTROL");
	environment_debug();
	region_config.pool = environment_text("TMS_INIT_POOL");
	region_config.exclude = environment_text("TMS_EXCLUDE");
	region_process.disk_backup_dir = region_config.disk_backup_dir = environment_text("TMS_DISK_BACKUP_DIR");
	region_config.disk_chunk_bytes = environment_number("TMS_DISK_BACKUP_CHUNK_MB", 32, 1, 32,
							    "a number of MiB from 1 to 32; using 32")
					 << 20;
	region_config.extent_bytes = environment_number(
		"TMS_EXTENT_BYTES", 80 << 20, 0, UINT64_MAX, "a number of bytes; using 83886080"); /* four of PyTorch's blocks */
	environment_shareable();
	region_config.host_pool_bytes = environment_number(
		"TMS_HOST_POOL_BYTES", 0, 0, UINT64_MAX, "a number of bytes; using 0");
	environment_names();
}

/* The defaults must be known before anything is set: a constructor of another library may come before ours. */
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

/* Takes the named libraries out of a list for the loader, in place. Returns whether others are left. */
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

/* The array is changed where it lies: a program may have its address from main, or from its start. */
AT_LOAD HIDDEN void region_leave_environment(const char *const *libraries)
{
	static const char preload[] = "LD_PRELOAD=";
	char **kept = environ, **entry = environ;
	bool is_kept = getenv("TMS_BEFORE_LD_PRELOAD"); /* whole */
	if (!environ || !environment_bool("TMS_NO_INHERIT"))
		return;
	for (; *entry; entry++) {
		if (strncmp(*entry, set_aside, sizeof set_aside - 1) == 0)
			*kept++ = *entry + sizeof set_aside - 1;
		else if (strncmp(*entry, preload, sizeof preload - 1) == 0 &&
			 (is_kept || !without(*entry + sizeof preload - 1, libraries)))
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
			snprintf(line, sizeof line, "%s is no variable of this library and does nothing; the nearest is %s",
				 c.variable, c.expected);
		log(line);
	}
}
