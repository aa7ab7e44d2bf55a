// Checkpoints: one process stops another, found by its number. The other's calls wait (base/process.c), and others can
// have its share of the devices' memory for a time (memory/budget.c). Contents stay where they are, since nothing that
// could touch them runs.
#include <string.h>

#include "base/process.h"
#include "entry/gate.h"

static bool zero(const void *bytes, size_t count)
{
	static const char zeros[64];
	return !bytes || !memcmp(bytes, zeros, count);
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
	if (args && (args->reserved0 || !zero(args->reserved1, sizeof args->reserved1)))
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
	TRY(budget_lend(page->process, page->shared, NULL));
	process_move(page, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
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
	if (!zero(reserved, 8 * sizeof *reserved)) // from driver 610 on, the first one of a checkpoint is for the caller's storage
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = to(page);
	process_release(page);
	return result;
}

// Returns the number of one of the machine's devices, or -1.
static int number_of(const CUuuid *uuid, int devices)
{
	CUuuid known;
	for (int i = 0; i < devices; i++) {
		uuid_write(&known, i);
		if (!memcmp(&known, uuid, sizeof known))
			return i;
	}
	return -1;
}

// Finds where each of the process's devices goes. As the driver does, it wants all of the machine's devices in the
// pairs, each once on either side; and the same model, by name.
static CUresult follow(const struct process_page *page, const CUcheckpointRestoreArgs *args, int places[MAX_DEVICES])
{
	int to[MAX_DEVICES];
	unsigned taken = 0;
	memset(to, -1, sizeof to);
	if (args->gpuPairsCount != (unsigned)page->devices)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < page->devices; i++) {
		int old = number_of(&args->gpuPairs[i].oldUuid, page->devices);
		int new = number_of(&args->gpuPairs[i].newUuid, page->devices);
		if (old < 0 || new < 0 || to[old] >= 0 || taken & 1u << new)
			return CUDA_ERROR_INVALID_VALUE;
		if (strcmp(device_name(old).text, device_name(new).text))
			return CUDA_ERROR_NOT_SUPPORTED;
		to[old] = new;
		taken |= 1u << new;
	}
	for (int i = 0; i < MAX_DEVICES; i++)
		places[i] = places[i] == NOWHERE ? NOWHERE : to[places[i]];
	return CUDA_SUCCESS;
}

// Without pairs, it restores to the devices that the process had. As driver 580 does, it loses a process for which there is
// too little memory: that restore answers 2, and all later ones 304.
static CUresult restore(int pid, const CUcheckpointRestoreArgs *args)
{
	struct process_page *page;
	int places[MAX_DEVICES];
	if (args && (!zero(args->reserved, sizeof args->reserved) || args->reserved1 || !args->gpuPairs != !args->gpuPairsCount))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_find(pid, &page));
	CUresult result = CUDA_SUCCESS;
	for (int i = 0; i < MAX_DEVICES; i++)
		places[i] = atomic_load(&page->places[i]);
	if (!sim.initialized) // as the driver without persistence mode
		result = CUDA_ERROR_NOT_INITIALIZED;
	else if (process_state(page) != CU_PROCESS_STATE_CHECKPOINTED)
		result = CUDA_ERROR_ILLEGAL_STATE;
	else if (atomic_load(&page->lost))
		result = CUDA_ERROR_OPERATING_SYSTEM;
	else if (args && args->gpuPairs)
		result = follow(page, args, places);
	if (result == CUDA_SUCCESS)
		result = budget_lend(page->process, page->shared, places);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		atomic_store(&page->lost, 1);
	for (int i = 0; i < MAX_DEVICES && result == CUDA_SUCCESS; i++)
		atomic_store(&page->places[i], places[i]);
	if (result == CUDA_SUCCESS)
		process_move(page, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
	process_release(page);
	return result;
}

// A planned failure of a restore for lack of memory loses the process as a real one does.
static CUresult planned(enum driver_function function, int pid, CUresult result)
{
	struct process_page *page;
	if (function == FN_cuCheckpointProcessRestore && result == CUDA_ERROR_OUT_OF_MEMORY &&
	    process_find(pid, &page) == CUDA_SUCCESS) {
		atomic_store(&page->lost, 1);
		process_release(page);
	}
	return result;
}

// As DEFINE, without sim.lock: this process's calls must be able to take it while they are being locked.
#define DEFINE_UNLOCKED(since, needs, name, version, parameters, ...) \
	CUresult name parameters \
	{ \
		TRY(planned(FN_##name, pid, gate_enter(FN_##name))); \
		gate_leave(NULL); \
		return __VA_ARGS__; \
	}
CHECKPOINT_FUNCTIONS(DEFINE_UNLOCKED)
