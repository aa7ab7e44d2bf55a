// Checkpoints: what one process does to another, found by its number. Its calls are held up (base/process.c), and what
// it has of the devices' memory is given to others for a time (memory/budget.c). Contents stay where they are: who
// could touch them is held up.
#include "base/process.h"
#include "entry/gate.h"

// As ENTER, without the lock, which calls of this process must be able to get while a lock is put on them.
#define ENTER_UNLOCKED(symbol)                                                                               \
	do {                                                                                                 \
		TRY(gate_enter(FN_##symbol));                                                                \
		gate_leave(NULL);                                                                            \
	} while (0)

static bool zero(const uint64_t *words, size_t count)
{
	uint64_t any = 0;
	for (size_t i = 0; words && i < count; i++)
		any |= words[i];
	return !any;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	ENTER_UNLOCKED(cuCheckpointProcessGetState);
	struct process_page *page;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	*state = process_state(page);
	process_release(page);
	return CUDA_SUCCESS;
}

// The simulator needs none: the first thread does as well as another.
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	ENTER_UNLOCKED(cuCheckpointProcessGetRestoreThreadId);
	struct process_page *page;
	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	*tid = pid;
	process_release(page);
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	ENTER_UNLOCKED(cuCheckpointProcessLock);
	struct process_page *page;
	if (args && (args->reserved0 || !zero(args->reserved1, 7)))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = process_lock(page, args ? args->timeoutMs : 0);
	process_release(page);
	return result;
}

// As the driver before version 610: what is shared with other processes can't be, and what is tried is not undone.
static CUresult checkpoint(struct process_page *page)
{
	if (process_state(page) != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (atomic_load(&page->shares)) {
		process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_FAILED);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	TRY(budget_lend(page->process, page->shared));
	process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	ENTER_UNLOCKED(cuCheckpointProcessCheckpoint);
	struct process_page *page;
	if (args && !zero(args->reserved, 8)) // the first would be for storage of the caller's: driver 610
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = checkpoint(page);
	process_release(page);
	return result;
}

static CUresult restore(struct process_page *page)
{
	if (process_state(page) != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	TRY(budget_claim(page->process, page->shared));
	process_move(page, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	ENTER_UNLOCKED(cuCheckpointProcessRestore);
	struct process_page *page;
	if (args && !zero(args->reserved, 8)) // other devices to restore to, which there are none of here
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim.initialized) // as the driver without persistence mode
		return CUDA_ERROR_NOT_INITIALIZED;
	TRY(process_find(pid, &page));
	CUresult result = restore(page);
	process_release(page);
	return result;
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	ENTER_UNLOCKED(cuCheckpointProcessUnlock);
	struct process_page *page;
	if (args && !zero(args->reserved, 8))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = CUDA_ERROR_ILLEGAL_STATE;
	if (process_state(page) == CU_PROCESS_STATE_LOCKED &&
	    process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING))
		result = CUDA_SUCCESS;
	process_release(page);
	return result;
}
