// Checkpoints: one process stops another, found by its number. The other's calls wait (base/process.c), and others can
// have its share of the devices' memory for a time (memory/budget.c). Contents stay where they are, since nothing that
// could touch them runs.
#include <string.h>

#include "base/process.h"
#include "entry/gate.h"

static bool zero(const uint64_t *words, size_t count)
{
	static const uint64_t zeros[8];
	return !words || !memcmp(words, zeros, count * sizeof *words);
}

static CUresult state_of(int pid, CUprocessState *state)
{
	struct process_page *page;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	*state = process_state(page);
	process_release(page);
	return CUDA_SUCCESS;
}

static CUresult lock(int pid, CUcheckpointLockArgs *args)
{
	struct process_page *page;
	if (args && (args->reserved0 || !zero(args->reserved1, 7)))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = process_lock(page, args ? args->timeoutMs : 0);
	process_release(page);
	return result;
}

// As drivers before 610: a process that shares memory with others can't be checkpointed, and an attempt is not undone.
static CUresult checkpoint(struct process_page *page)
{
	if (process_state(page) != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (atomic_load(&page->shares)) {
		process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_FAILED);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	TRY(budget_lend(page->process, page->shared, true));
	process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
	return CUDA_SUCCESS;
}

// Restores to the devices that it had, because the simulator has no others to name.
static CUresult restore(struct process_page *page)
{
	if (!sim.initialized) // as the driver without persistence mode
		return CUDA_ERROR_NOT_INITIALIZED;
	if (process_state(page) != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	TRY(budget_lend(page->process, page->shared, false));
	process_move(page, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
	return CUDA_SUCCESS;
}

static CUresult unlock(struct process_page *page)
{
	bool unlocked = process_state(page) == CU_PROCESS_STATE_LOCKED &&
			process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
	return unlocked ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

static CUresult change(int pid, const uint64_t *reserved, CUresult (*to)(struct process_page *))
{
	struct process_page *page;
	if (!zero(reserved, 8)) // from driver 610 on, the first one of a checkpoint is for the caller's storage
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = to(page);
	process_release(page);
	return result;
}

// As DEFINE, without sim.lock: this process's calls must be able to take it while they are being locked.
#define DEFINE_UNLOCKED(since, needs, name, version, parameters, ...) \
	CUresult name parameters \
	{ \
		TRY(gate_enter(FN_##name)); \
		gate_leave(NULL); \
		return __VA_ARGS__; \
	}
CHECKPOINT_FUNCTIONS(DEFINE_UNLOCKED)
