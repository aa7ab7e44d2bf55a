/* region is the core of "whose memory is this": what a thread asked for its next allocations. */
#ifndef TMS_REGION_H
#define TMS_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum region_backend { REGION_PINNED = 0, REGION_MMAP = 1 };

/* What one allocation is to be. */
struct region_settings {
	const char *tag; /* interned: valid for the life of the process */
	unsigned char active; /* 1: yes; in the defaults also REGION_TRACED */
	bool cpu_backup;
	bool disk_backup;
	bool incremental;
	unsigned char backend; /* enum region_backend */
	unsigned char peer;    /* 0: no peer backup; 1: on any device; 2 + ordinal: on that one */
	bool wanted;           /* as active would be but for excluded */
	bool excluded;
};

/* A thread's settings are kept as differences from the defaults, so that a fresh thread's zeroed
 * storage already means "the defaults" and the fast path needs no first-use branch. */
extern __thread struct region_settings region_delta
	__attribute__((tls_model("initial-exec"), visibility("hidden")));
extern struct region_settings region_defaults __attribute__((visibility("hidden")));

/* With TMS_TRACE every thread's calls are watched, in a region or not: entry points read one flag. */
enum { REGION_TRACED = 2 };

static inline bool region_active(void)
{
	return (region_delta.active ^ region_defaults.active) & 1;
}

static inline bool region_watched(void)
{
	return region_delta.active ^ region_defaults.active;
}

/* Process-wide settings. */
struct region_process {
	_Atomic bool retain_cpu_backup;
	_Atomic uint64_t margin_bytes;
	_Atomic(const char *) disk_backup_dir; /* NULL: unset; interned */
	const char *disk_backup_dir_at_start;  /* by the environment; the same pointer while it still holds */
	unsigned disk_backup_chunk_mb;
	uint64_t host_pool_bytes;
	uint64_t extent_bytes;
	bool verify;
	bool shareable;
	const char *exclude; /* names of libraries, ":" between them; NULL: none */
	bool poison;     /* TMS_DEBUG */
	bool invariants; /* TMS_DEBUG */
};
extern struct region_process region_process __attribute__((visibility("hidden")));

/* What runs at load lies together: for each place that it touches the kernel maps 64 KiB of the file. */
#define AT_LOAD __attribute__((section(".text.startup")))

/* Reads the TMS_* environment, once: at load, or at the first use before. Allocates nothing unless a
 * variable is set. */
void region_load_environment(void);

/* Tells log one line per environment variable that could not be understood; the first call only. */
void region_report_environment(void (*log)(const char *));

struct region_settings region_get(void);
void region_set_active(bool on);

/* While a thread is excluded nothing is taken, whatever regions it enters. */
void region_set_excluded(bool on);

/* What region_set_active was last told, or the default. */
bool region_wanted(void);
void region_set_cpu_backup(bool on);
void region_set_disk_backup(bool on);
void region_set_incremental(bool on);
void region_set_backend(enum region_backend backend);

/* device: the ordinal that keeps contents, -1: any. Returns false when it cannot be one. */
bool region_set_peer(bool on, int device);

/* NULL or "" means "default". Returns false when there is no memory to keep the name. */
bool region_set_tag(const char *tag);

/* A copy of text that lives as long as the process; equal texts give the same pointer. */
const char *region_intern(const char *text);

/* "pinned" or "mmap" (any case); false: no such backend. */
bool region_parse_backend(const char *text, enum region_backend *backend);
const char *region_backend_name(enum region_backend backend);

#endif
