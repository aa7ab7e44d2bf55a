// The part of a process that other processes see and change: its state for the checkpoint functions, and its device
// memory for NVML. It is a page in a memfd. Others find it among the process's descriptors, so only the same user
// can, and it vanishes with the process.
#ifndef CUDASIM_PROCESS_H
#define CUDASIM_PROCESS_H

#include <dirent.h>
#include <stdatomic.h>

#include "base/simulator.h"

struct process_page {
	int process;
	uint64_t file; // the inode of the memfd
	_Atomic uint32_t initialized;
	_Atomic uint32_t state; // CUprocessState, or LOCKING; waiting calls sleep on it
	_Atomic uint32_t inside; // calls that the process is in; the locking process sleeps on it
	_Atomic uint32_t shares; // pieces of memory shared with other processes, which can't be checkpointed
	_Atomic uint32_t lost; // a restore found too little memory: no other one brings the process back
	_Atomic uint64_t deadline; // for LOCKING, CLOCK_MONOTONIC in ns, or 0 for no deadline
	char shared[65]; // CUDASIM_SHARED
	int devices; // of the machine
	uint64_t memory; // of each device
	_Atomic uint64_t held[MAX_DEVICES];
	_Atomic int places[MAX_DEVICES]; // which of the machine's devices each of its own is, or NOWHERE
};

enum { LOCKING = 64 }; // a query reports running, but new calls already wait

bool process_publish(uint64_t memory); // of each device; at cuInit. Reports whether it could
void process_withdraw(void); // at a reset
void process_forget(void); // in a forked child
void process_shares(int more); // pieces of memory, or fewer
void process_holds(int device, uint64_t bytes);
int process_place(int device);
// Before each call: waits while the process is locked, and returns false if it has failed. If *inside is set, call
// process_leave after the call.
bool process_enter(bool *inside);
CUprocessState process_pass(bool *inside); // the same, but does not wait; returns the state
void process_leave(void);
void process_read_taken(void); // reads from a page that a checkpoint has taken away: SIGSEGV

// Maps any process's page. Returns CUDA_ERROR_INVALID_VALUE if there is no such process, CUDA_ERROR_NOT_INITIALIZED if
// it has not called cuInit, and CUDA_ERROR_NOT_PERMITTED if it belongs to another user.
CUresult process_find(int process, struct process_page **page);
void process_release(struct process_page *page);
CUprocessState process_state(struct process_page *page);
bool process_move(struct process_page *page, uint32_t from, uint32_t to); // from one state to another
CUresult process_lock(struct process_page *page, unsigned timeout_ms);

// All processes that have called cuInit. Each locks the file of its page, so /proc/locks leads to it, and nothing reads
// all descriptors of the machine: that took a third of the time of the tests that move processes.
struct processes {
	char *locks; // NULL if they are unknown, or change all the time
	char *line; // the next
	DIR *all; // /proc, without locks
	int process; // whose page the last one was, by its number here
};
void processes_open(struct processes *of);
struct process_page *processes_next(struct processes *of); // maps the page; NULL after the last
void processes_close(struct processes *of);

#endif
