/* rdma interposes the functions by which a program lets a network card (libibverbs), a file system (libcufile) or the
 * processor (libgdrapi) reach memory of the GPU without CUDA. Such a registration names physical memory, which a pause
 * gives back, so libtms.so refuses to pause what is registered (registrations.c). For the gate, cuFileRead and its kin
 * are work.
 *
 * NCCL, UCX and NIXL open these libraries themselves, and take the functions by dlsym or dlvsym. For each library that
 * answers there, a function has its own entry. If the loader has bound the function, its entry here finds the library
 * that the caller would have been bound to. */
#define _GNU_SOURCE
#include "nccl.h"
#include "../../../forward/symbols.h"
#include "../../../forward/words.h"

#include <errno.h>

enum { LIBRARIES = 4 };

/* X(symbol, library, how many arguments, address and size of the memory that it is about (0, 0 for none),
 *   what it returns where it is refused, what is noted of its result) */
#define RDMA_CALLS(X) \
	X(ibv_reg_mr, "libibverbs.so", 4, b, c, 0, made(AT_ibv_reg_mr, result, b, c)) \
	X(ibv_reg_mr_iova, "libibverbs.so", 5, b, c, 0, made(AT_ibv_reg_mr_iova, result, b, c)) \
	X(ibv_reg_mr_iova2, "libibverbs.so", 5, b, c, 0, made(AT_ibv_reg_mr_iova2, result, b, c)) \
	/* The descriptor does not say where its memory lies; callers pass that as the card's address. */ \
	X(ibv_reg_dmabuf_mr, "libibverbs.so", 6, d, c, 0, made(AT_ibv_reg_dmabuf_mr, result, d, c)) \
	X(ibv_reg_mr_ex, "libibverbs.so", 2, extended_address(b), extended_size(b), 0, \
	  made(AT_ibv_reg_mr_ex, result, extended_address(b), extended_size(b))) \
	X(mlx5dv_reg_dmabuf_mr, "libmlx5.so", 7, d, c, 0, made(AT_mlx5dv_reg_dmabuf_mr, result, d, c)) \
	X(mlx5dv_devx_umem_reg, "libmlx5.so", 4, b, c, 0, made(AT_mlx5dv_devx_umem_reg, result, b, c)) \
	X(mlx5dv_devx_umem_reg_ex, "libmlx5.so", 2, umem_of(b)->address, umem_of(b)->size, 0, \
	  made(AT_mlx5dv_devx_umem_reg_ex, result, umem_of(b)->address, umem_of(b)->size)) \
	X(mlx5dv_devx_umem_dereg, "libmlx5.so", 1, 0, 0, 0, (int)result == 0 ? memory_forgotten(card, (void *)a) : (void)0) \
	X(ibv_rereg_mr, "libibverbs.so", 6, b & CHANGES_MEMORY ? d : 0, b & CHANGES_MEMORY ? e : 0, EAGAIN, \
	  remade(result, a, b, d, e)) \
	X(ibv_dereg_mr, "libibverbs.so", 1, 0, 0, 0, (int)result == 0 ? memory_forgotten(card, (void *)a) : (void)0) \
	X(cuFileBufRegister, "libcufile.so", 3, a, b, CUFILE_REFUSED, \
	  is_done(result) ? memory_noted(&registrars[AT_cuFileBufRegister], a, b, (void *)a) : (void)0) \
	X(cuFileBufDeregister, "libcufile.so", 1, 0, 0, 0, is_done(result) ? memory_forgotten(storage, (void *)a) : (void)0) \
	X(cuFileRead, "libcufile.so", 5, b, c, -CUFILE_REFUSED_CODE, (void)0) \
	X(cuFileWrite, "libcufile.so", 5, b, c, -CUFILE_REFUSED_CODE, (void)0) \
	X(cuFileReadAsync, "libcufile.so", 7, b, 1, CUFILE_REFUSED, (void)0) \
	X(cuFileWriteAsync, "libcufile.so", 7, b, 1, CUFILE_REFUSED, (void)0) \
	X(cuFileBatchIOSubmit, "libcufile.so", 4, batch_address(c, b), 1, CUFILE_REFUSED, \
	  is_done(result) ? batch_begun(a, c, b) : (void)0) \
	X(cuFileBatchIOGetStatus, "libcufile.so", 5, 0, 0, 0, is_done(result) ? batch_ended(a, (const void *)d, c) : (void)0) \
	X(cuFileBatchIODestroy, "libcufile.so", 1, 0, 0, 0, memory_goes_with((void *)a)) \
	X(cuLogicalEndpointBindAddr, "libcuda.so", 6, d, e, PAUSED, (int)result == 0 ? bound(a, b, c, d, e) : (void)0) \
	X(cuLogicalEndpointUnbind, "libcuda.so", 4, 0, 0, 0, \
	  (int)result == 0 ? (void)memory_deregistered(DONE, endpoint(a), place(b, c)) : (void)0) \
	X(cuLogicalEndpointDestroy, "libcuda.so", 1, 0, 0, 0, (int)result == 0 ? memory_goes_with(endpoint(a)) : (void)0) \
	X(gdr_pin_buffer, "libgdrapi.so", 6, b, c, EAGAIN, pinned(AT_gdr_pin_buffer, result, f, b, c)) \
	X(gdr_pin_buffer_v2, "libgdrapi.so", 5, b, c, EAGAIN, pinned(AT_gdr_pin_buffer_v2, result, e, b, c)) \
	X(gdr_unpin_buffer, "libgdrapi.so", 2, 0, 0, 0, (int)result == 0 ? memory_forgotten(processor, (void *)b) : (void)0)

enum {
#define X(symbol, ...) AT_##symbol,
	RDMA_CALLS(X)
#undef X
		CALLS
};

/* IBV_REREG_MR_CHANGE_TRANSLATION. A CUfileError_t is two words of 32 bits: CU_FILE_CUDA_DRIVER_ERROR, and CUDA's code,
 * here ILLEGAL_STATE. */
#define CHANGES_MEMORY 1
#define CUFILE_REFUSED_CODE 5011ull
#define CUFILE_REFUSED (CUFILE_REFUSED_CODE | 401ull << 32)
#define PAUSED 401

static const char card[] = "a network card", storage[] = "GPUDirect Storage", processor[] = "GDRCopy",
		  endpoints[] = "a logical endpoint";

static const struct registrar registrars[CALLS] = {
	[AT_ibv_reg_mr] = {card, "ibv_reg_mr", "ibv_dereg_mr"},
	[AT_ibv_reg_mr_iova] = {card, "ibv_reg_mr_iova", "ibv_dereg_mr"},
	[AT_ibv_reg_mr_iova2] = {card, "ibv_reg_mr_iova2", "ibv_dereg_mr"},
	[AT_ibv_reg_dmabuf_mr] = {card, "ibv_reg_dmabuf_mr", "ibv_dereg_mr"},
	[AT_ibv_reg_mr_ex] = {card, "ibv_reg_mr_ex", "ibv_dereg_mr"},
	[AT_mlx5dv_reg_dmabuf_mr] = {card, "mlx5dv_reg_dmabuf_mr", "ibv_dereg_mr"},
	[AT_mlx5dv_devx_umem_reg] = {card, "mlx5dv_devx_umem_reg", "mlx5dv_devx_umem_dereg"},
	[AT_mlx5dv_devx_umem_reg_ex] = {card, "mlx5dv_devx_umem_reg_ex", "mlx5dv_devx_umem_dereg"},
	[AT_cuFileBatchIOSubmit] = {storage, "cuFileBatchIOSubmit", "cuFileBatchIOGetStatus"},
	[AT_cuLogicalEndpointBindAddr] = {endpoints, "cuLogicalEndpointBindAddr", "cuLogicalEndpointUnbind"},
	[AT_ibv_rereg_mr] = {card, "ibv_rereg_mr", "ibv_dereg_mr"},
	[AT_cuFileBufRegister] = {storage, "cuFileBufRegister", "cuFileBufDeregister"},
	[AT_gdr_pin_buffer] = {processor, "gdr_pin_buffer", "gdr_unpin_buffer"},
	[AT_gdr_pin_buffer_v2] = {processor, "gdr_pin_buffer_v2", "gdr_unpin_buffer"},
};

static void made(int at, uintptr_t region, uintptr_t address, size_t size)
{
	if (region)
		memory_noted(&registrars[at], address, size, (void *)region);
}

static void remade(uintptr_t result, uintptr_t region, uintptr_t flags, uintptr_t address, size_t size)
{
	if ((int)result != 0 || !(flags & CHANGES_MEMORY))
		return;
	memory_forgotten(card, (void *)region);
	memory_noted(&registrars[AT_ibv_rereg_mr], address, size, (void *)region);
}

static bool is_done(uintptr_t result)
{
	return (uint32_t)result == 0;
}

static void pinned(int at, uintptr_t result, uintptr_t handle, uintptr_t address, size_t size)
{
	if ((int)result == 0)
		memory_noted(&registrars[at], address, size, *(void **)handle);
}

static bool may_be_pausable(uintptr_t address, size_t size)
{
	return size && (reach_is_pausable(address) || reach_is_pausable(address + size - 1));
}

/* ibv_mr_init_attr: the memory is at addr, or behind a descriptor, for which the card's address is the program's. */
struct extended {
	size_t size;
	int access;
	uint64_t mask, card, address;
};

static size_t extended_size(uintptr_t attributes)
{
	return ((const struct extended *)attributes)->size;
}

static uintptr_t extended_address(uintptr_t attributes)
{
	const struct extended *of = (const struct extended *)attributes;
	return may_be_pausable(of->address, of->size) ? of->address : of->card;
}

struct umem { /* mlx5dv_devx_umem_in */
	uintptr_t address;
	size_t size;
};

static const struct umem *umem_of(uintptr_t in)
{
	return (const struct umem *)in;
}

/* CUfileIOParams_t and CUfileIOEvents_t. */
struct batch_part {
	int mode;
	uintptr_t base;
	long file_offset, offset;
	size_t size;
	void *file;
	int operation;
	void *cookie;
};
struct batch_event {
	void *cookie;
	int status;
	size_t bytes;
};
enum { INVALID = 4 }; /* a CUfileStatus_t: it and those above it are ends */

static uintptr_t batch_address(uintptr_t parts, uintptr_t count)
{
	const struct batch_part *part = (const struct batch_part *)parts;
	for (unsigned i = 0; part && i < (unsigned)count; i++)
		if (may_be_pausable(part[i].base, 1))
			return part[i].base;
	return 0;
}

/* The parts go on after the call, each until an event tells of it. */
static void batch_begun(uintptr_t batch, uintptr_t parts, uintptr_t count)
{
	const struct batch_part *part = (const struct batch_part *)parts;
	for (unsigned i = 0; part && i < (unsigned)count; i++)
		memory_noted_of((void *)batch, &registrars[AT_cuFileBatchIOSubmit], part[i].base + (uintptr_t)part[i].offset,
				part[i].size, part[i].cookie);
}

static void batch_ended(uintptr_t batch, const struct batch_event *events, uintptr_t count)
{
	for (unsigned i = 0; events && count && i < *(const unsigned *)count; i++)
		if (events[i].status >= INVALID)
			memory_deregistered(DONE, (void *)batch, events[i].cookie);
}

/* An endpoint's number, in a form that is no communicator's address, and a place of one of its devices. */
static void *endpoint(uintptr_t number)
{
	return (void *)(((uintptr_t)(uint32_t)number << 1) | 1);
}

static void *place(uintptr_t device, uintptr_t offset)
{
	return (void *)(((uintptr_t)(uint32_t)device << 56) | offset);
}

static void bound(uintptr_t number, uintptr_t device, uintptr_t offset, uintptr_t address, size_t size)
{
	memory_noted_of(endpoint(number), &registrars[AT_cuLogicalEndpointBindAddr], address, size, place(device, offset));
}

static struct gate_call calls[CALLS] = {
#define X(symbol, ...) {.name = #symbol, .kind = WORK},
	RDMA_CALLS(X)
#undef X
};

static _Atomic(void *) real[CALLS][LIBRARIES];

#define ENTRY(symbol, library, words, address, size, refused, note)                                        \
	static uintptr_t through_##symbol(void *function, WORDS_##words)                                   \
	{                                                                                                  \
		struct gate_mark *mark = NULL;                                                             \
		if (!function) {                                                                           \
			errno = ENOSYS;                                                                    \
			return refused;                                                                    \
		}                                                                                          \
		if (may_be_pausable(address, size))                                                        \
			mark = gate_enter(&calls[AT_##symbol], 0);                                         \
		if (mark == NO_MARK || mark == REFUSED) {                                                  \
			errno = EAGAIN;                                                                    \
			return refused;                                                                    \
		}                                                                                          \
		uintptr_t result = ((uintptr_t (*)(WORDS_##words))function)(PASS_##words);                 \
		const int error = errno;                                                                   \
		note;                                                                                      \
		gate_leave(mark);                                                                          \
		errno = error;                                                                             \
		return result;                                                                             \
	}                                                                                                  \
	EXPORT uintptr_t symbol(WORDS_##words)                                                             \
	{                                                                                                  \
		return through_##symbol(reach_bound(__builtin_return_address(0), #symbol, library), PASS_##words); \
	}                                                                                                  \
	static uintptr_t symbol##_0(WORDS_##words) { return through_##symbol(real[AT_##symbol][0], PASS_##words); } \
	static uintptr_t symbol##_1(WORDS_##words) { return through_##symbol(real[AT_##symbol][1], PASS_##words); } \
	static uintptr_t symbol##_2(WORDS_##words) { return through_##symbol(real[AT_##symbol][2], PASS_##words); } \
	static uintptr_t symbol##_3(WORDS_##words) { return through_##symbol(real[AT_##symbol][3], PASS_##words); }
RDMA_CALLS(ENTRY)

HIDDEN void *rdma_entry(const char *symbol, void *theirs)
{
	static void *const entries[CALLS][LIBRARIES] = {
#define X(symbol, ...) {symbol##_0, symbol##_1, symbol##_2, symbol##_3},
		RDMA_CALLS(X)
#undef X
	};
	for (int at = 0; theirs && at < CALLS; at++) {
		if (strcmp(calls[at].name, symbol) != 0)
			continue;
		if (reach_is_here(theirs))
			return NULL;
		for (int i = 0; i < LIBRARIES; i++) {
			void *free_ = NULL, *known = kept(theirs);
			if (atomic_compare_exchange_strong(&real[at][i], &free_, known) || free_ == known)
				return entries[at][i];
		}
		return NULL;
	}
	return NULL;
}
