/* region has what a thread asks for its next allocations, and what the process was started with (TMS_*). What is
 * made of it is the business of preload; Go is handed it whole. */
#ifndef TMS_REGION_H
#define TMS_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where contents wait while a segment is paused. The numbers are vmm.BackupKind's; those after REGION_PEER mean one
 * device's memory: REGION_PEER_OF(0) and so on. */
enum region_backup { REGION_NONE, REGION_HOST, REGION_DISK, REGION_PEER };
#define REGION_PEER_OF(device) (REGION_PEER + 1 + (device))

/* What one allocation is to be. */
struct region_settings {
	const char *tag; /* interned: valid for the life of the process */
	bool active;	 /* in a region: it is to be pausable */
	bool incremental; /* of REGION_HOST */
	bool mmap;	  /* of REGION_HOST: its backend is "mmap", not "pinned" */
	int backup;	  /* enum region_backup */
};

/* A fresh thread's zeroed storage means the defaults, so that the fast path needs no first-use branch. */
struct region_thread {
	struct region_settings settings; /* once something is set; but for active */
	bool set;
	/* Each whether it differs from the default. */
	bool active;
	bool wanted; /* as active would be but for excluded */
	bool excluded;
};
extern __thread struct region_thread region_thread
	__attribute__((tls_model("initial-exec"), visibility("hidden")));
extern struct region_settings region_defaults __attribute__((visibility("hidden")));

static inline bool region_active(void)
{
	return region_thread.active ^ region_defaults.active;
}

/* What the process was started with. */
struct region_config {
	uint64_t host_pool_bytes;
	uint64_t extent_bytes;
	const char *disk_backup_dir; /* NULL: unset; interned */
	const char *pool;	     /* a kind of pool for allocations, ":" and its options; NULL: none */
	const char *exclude;	     /* names of libraries, ":" between them; NULL: none */
	bool verify;
	signed char shareable; /* TMS_SHAREABLE: other processes can open memory of a region; below 0: not set */
	bool exportable; /* and the program can export it itself */
	bool nccl_registers; /* NCCL_GRAPH_REGISTER is not 0 */
	bool control; /* TMS_CONTROL */
	bool poison;	 /* TMS_DEBUG */
	bool invariants; /* TMS_DEBUG */
	bool pause_force;
	bool account; /* TMS_ACCOUNT */
};
extern struct region_config region_config __attribute__((visibility("hidden")));

/* Settings of the process that change. */
struct region_process {
	uint64_t margin_bytes; /* read by Go too, so by __atomic functions */
	_Atomic bool retain_cpu_backup;
	_Atomic(const char *) disk_backup_dir; /* NULL: unset; interned, so still region_config's if the pointer is */
};
extern struct region_process region_process __attribute__((visibility("hidden")));

/* What runs at load lies together: for each place that it touches the kernel maps 64 KiB of the file. */
#define AT_LOAD __attribute__((section(".text.startup")))

/* Reads the TMS_* environment, once: at load, or at the first use before. Allocates nothing unless a
 * variable is set. */
void region_load_environment(void);

/* With TMS_NO_INHERIT, once all has been read: takes what was for this library out of the environment, these libraries
 * (a list that ends with NULL) out of LD_PRELOAD, and puts back what tms run has kept under TMS_BEFORE_. */
void region_leave_environment(const char *const *libraries);

/* Tells log one line per environment variable that could not be understood; the first call only. */
void region_report_environment(void (*log)(const char *));

struct region_settings region_get(void);
struct region_settings *region_mine(void); /* the calling thread's own, to be set; but for active */
void region_set_active(bool on);

/* While a thread is excluded nothing is taken, whatever regions it enters. */
void region_set_excluded(bool on);

/* What region_set_active was last told, or the default. */
bool region_wanted(void);

/* NULL or "" means the default. Returns false when there is no memory to keep the name. */
bool region_set_tag(const char *tag);

/* A copy of text that lives as long as the process; equal texts give the same pointer. NULL: no memory. */
const char *region_intern(const char *text);

/* "pinned" or "mmap" (any case); false: no such backend. */
bool region_parse_backend(const char *text, void *mmap);

#endif
