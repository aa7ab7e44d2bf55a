/* region has what a thread asks for its next allocations, and the process's settings (TMS_*). preload acts on them, and
 * passes them to Go whole. */
#ifndef TMS_REGION_H
#define TMS_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where contents wait while a segment is paused. The numbers are vmm.BackupKind's; those after REGION_PEER mean one
 * device's memory: REGION_PEER_OF(0) and so on. */
enum region_backup { REGION_NONE, REGION_HOST, REGION_DISK, REGION_SPARSE, REGION_PEER };
#define REGION_PEER_OF(device) (REGION_PEER + 1 + (device))

/* The settings of one allocation. */
struct region_settings {
	const char *tag; /* interned: valid for the life of the process */
	bool active;	 /* in a region: make it pausable */
	bool incremental; /* for REGION_HOST */
	bool mmap;	  /* for REGION_HOST: its backend is "mmap", not "pinned" */
	int backup;	  /* enum region_backup */
};

/* A fresh thread's zeroed storage means the defaults, so that the fast path needs no first-use branch. */
struct region_thread {
	struct region_settings settings; /* once set; without active */
	bool set;
	/* Of active and wanted, each is true where it differs from the default. */
	bool active;
	bool wanted; /* the value of active without excluded */
	bool excluded;
};
extern __thread struct region_thread region_thread
	__attribute__((tls_model("initial-exec"), visibility("hidden")));
extern struct region_settings region_defaults __attribute__((visibility("hidden")));

static inline bool region_active(void)
{
	return region_thread.active ^ region_defaults.active;
}

/* Settings of the process that stay as they were at its start. */
struct region_config {
	uint64_t extent_bytes;
	const char *disk_backup_dir; /* NULL: unset; interned */
	const char *pool;	     /* a kind of pool for allocations, ":" and its options, or NULL */
	const char *exclude;	     /* names of libraries with ":" between them, or NULL */
	bool verify;
	signed char shareable; /* TMS_SHAREABLE: other processes can open memory of a region; below 0: not set */
	bool exportable; /* the program can also export it itself */
	bool nccl_registers; /* NCCL_GRAPH_REGISTER is not 0 */
	bool control; /* TMS_CONTROL */
	bool control_any_namespace; /* TMS_CONTROL_ANY_NAMESPACE */
	bool poison;	 /* TMS_DEBUG */
	bool invariants; /* TMS_DEBUG */
	bool pause_force;
	bool account; /* TMS_ACCOUNT */
	bool share;   /* TMS_SHARE */
	double share_priority;
	bool pause_lines;	       /* a paused program's terminal says so */
	_Atomic double signal_wait;    /* seconds that a paused process tries to resume after a signal that asks it to end */
	_Atomic double share_at_least; /* less than 0: by the price of a swap */
	uint64_t share_host_limit; /* 0: none */
	uint64_t limit_bytes;		       /* 0: none */
};
extern struct region_config region_config __attribute__((visibility("hidden")));

/* Settings of the process that change. */
struct region_process {
	uint64_t margin_bytes; /* read by Go too, so by __atomic functions */
	_Atomic bool retain_cpu_backup;
	_Atomic double resume_wait; /* seconds that a resume waits for memory, if it names no time itself */
	_Atomic(const char *) disk_backup_dir; /* NULL: unset; interned, so still region_config's if the pointer is */
};
extern struct region_process region_process __attribute__((visibility("hidden")));

/* Functions that run at load lie together, because the kernel maps 64 KiB of the file for each place that they
 * touch. */
#define AT_LOAD __attribute__((section(".text.startup")))

/* Reads the TMS_* environment once: at load, or at an earlier use. Allocates nothing unless a variable is set. */
void region_load_environment(void);

/* With TMS_NO_INHERIT, after all was read: takes this library's variables out of the environment and these libraries (a
 * list that ends with NULL) out of LD_PRELOAD. */
void region_leave_environment(const char *const *libraries);

/* Logs one line per environment variable that was not understood, in the first call only. */
void region_report_environment(void (*log)(const char *));

struct region_settings region_get(void);
struct region_settings *region_mine(void); /* the calling thread's own, to be changed; except active */
void region_set_active(bool on);

/* While a thread is excluded its memory is not pausable, whatever regions it enters. */
void region_set_excluded(bool on);

/* The value that region_set_active last set, or the default. */
bool region_wanted(void);

/* NULL or "" means the default. Returns false when there is no memory to keep the name. */
bool region_set_tag(const char *tag);

/* Returns a copy of text that lives as long as the process, or NULL without memory. Equal texts give the same
 * pointer. */
const char *region_intern(const char *text);

/* Parses "pinned" or "mmap" in any case, and reports whether text is one of them. */
bool region_parse_backend(const char *text, void *mmap);

#endif
