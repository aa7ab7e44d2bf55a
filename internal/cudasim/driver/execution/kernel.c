// The simulated kernels: each is a C function that does to memory what the kernel does. A kernel reads memory as its
// device sees it: an address that is not mapped, or was mapped after the launch, is a fault.
#include <string.h>

#include "digest.h"
#include "execution/execution.h"

static bool reachable(const struct context *context, uint64_t address, uint64_t size, bool write,
		      uint64_t mapped_before)
{
	enum place place = memory_place(kernel_reach(context), address, size, write);
	if (place == PLACE_HOST)
		return host_pinned(address, size);
	if (place != PLACE_DEVICE)
		return false;
	for (uint64_t at = address; at < address + size;) {
		struct mapping *mapping = mapping_at(at);
		if (mapping->id > mapped_before)
			return false;
		at = mapping->node.key + mapping->size;
	}
	return true;
}

struct digest_parameters {
	const struct digest_block *blocks;
	digest_number *digests;
	struct digest_keys keys[DIGEST_LANES];
};
static const struct parameter digest_parameters[] = {
	{offsetof(struct digest_parameters, blocks), sizeof(void *)},
	{offsetof(struct digest_parameters, digests), sizeof(void *)},
	{offsetof(struct digest_parameters, keys), sizeof(struct digest_keys[DIGEST_LANES])},
};
_Static_assert(sizeof(struct digest_parameters) <= PARAMETER_BYTES, "room for the parameters");

static void digest(const struct digest_block *block, const struct digest_keys *keys, digest_number *result)
{
	digest_number sums[DIGEST_LANES][DIGEST_THREADS] = {0};
	const digest_word *words = (const digest_word *)block->address;
	uint64_t count = block->bytes / 16, pairs = 2 * DIGEST_THREADS;
	for (uint64_t first = 0; first < count; first += pairs)
		for (unsigned thread = 0; thread < DIGEST_THREADS && first + thread < count; thread++) {
			uint64_t group = first + thread, other = group + DIGEST_THREADS;
			digest_word w[8] = {0};
			memcpy(w, words + 4 * group, 16);
			if (other < count)
				memcpy(w + 4, words + 4 * other, 16);
			for (int lane = 0; lane < DIGEST_LANES; lane++)
				sums[lane][thread] = digest_step(sums[lane][thread], &keys[lane], w);
		}
	for (int lane = 0; lane < DIGEST_LANES; lane++) {
		digest_number total = 0;
		for (unsigned thread = 0; thread < DIGEST_THREADS; thread++)
			total = digest_add(total, digest_multiply(sums[lane][thread],
								  digest_power(keys[lane].q, thread)));
		result[lane] = digest_final(total);
	}
}

static CUresult run_digest(const struct context *context, unsigned grid, const void *raw,
			   uint64_t mapped_before)
{
	const struct digest_parameters *parameters = raw;
	uint64_t blocks = (uint64_t)parameters->blocks, digests = (uint64_t)parameters->digests;
	if (blocks % sizeof(digest_number) || digests % sizeof(digest_number))
		return CUDA_ERROR_MISALIGNED_ADDRESS;
	if (!reachable(context, blocks, grid * sizeof(struct digest_block), false, mapped_before) ||
	    !reachable(context, digests, grid * sizeof(digest_number[DIGEST_LANES]), true, mapped_before))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (unsigned i = 0; i < grid; i++) {
		const struct digest_block *block = &parameters->blocks[i];
		uint64_t read = block->bytes / 16 * 16;
		if (read && block->address % 16)
			return CUDA_ERROR_MISALIGNED_ADDRESS;
		if (read && !reachable(context, block->address, read, false, mapped_before))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		digest(block, parameters->keys, &parameters->digests[(uint64_t)i * DIGEST_LANES]);
	}
	return CUDA_SUCCESS;
}

// Adds a number to each of some words, so that a lost or repeated launch shows.
struct add_parameters {
	uint32_t *words;
	uint64_t count;
	uint32_t number;
};
static const struct parameter add_parameters[] = {
	{offsetof(struct add_parameters, words), sizeof(uint32_t *)},
	{offsetof(struct add_parameters, count), sizeof(uint64_t)},
	{offsetof(struct add_parameters, number), sizeof(uint32_t)},
};

static CUresult run_add(const struct context *context, unsigned grid, const void *raw, uint64_t mapped_before)
{
	(void)grid;
	const struct add_parameters *parameters = raw;
	uint64_t address = (uint64_t)parameters->words;
	if (address % sizeof(uint32_t))
		return CUDA_ERROR_MISALIGNED_ADDRESS;
	if (!reachable(context, address, parameters->count * sizeof(uint32_t), true, mapped_before))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < parameters->count; i++)
		parameters->words[i] += parameters->number;
	return CUDA_SUCCESS;
}

const struct emulation emulations[EMULATIONS] = {
	{
		.name = "cudasim_add",
		.block = {1, 1, 1},
		.parameters = add_parameters,
		.count = sizeof add_parameters / sizeof *add_parameters,
		.run = run_add,
	},
	{
		.name = "tms_digest",
		.block = {DIGEST_THREADS, 1, 1},
		.parameters = digest_parameters,
		.count = sizeof digest_parameters / sizeof *digest_parameters,
		.run = run_digest,
	},
};

struct function *function_find(const struct kernel *kernel, const struct context *context)
{
	struct function *function;
	for (uint64_t cursor = 0; (function = object_next(FUNCTION, &cursor));)
		if ((!kernel || function->kernel == kernel) && function->context == context)
			return function;
	return NULL;
}

CUresult function_of(struct kernel *kernel, struct context *context, struct function **function)
{
	*function = function_find(kernel, context);
	if (*function)
		return CUDA_SUCCESS;
	*function = object_new(FUNCTION, sizeof **function);
	if (!*function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*function)->kernel = kernel;
	(*function)->context = context;
	return CUDA_SUCCESS;
}

CUresult function_load(struct kernel *kernel, struct context *context)
{
	struct function *function;
	if (!sim.settings.code)
		return CUDA_SUCCESS;
	TRY(function_of(kernel, context, &function));
	function->loaded = function->loaded || budget_take(context->device, sim.settings.code);
	return function->loaded ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void functions_forget(const struct context *context)
{
	struct function *function;
	while ((function = function_find(NULL, context))) {
		if (function->loaded)
			budget_give(function->context->device, sim.settings.code);
		object_delete(&function->object);
	}
}
