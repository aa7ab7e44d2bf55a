/* rdma interposes the functions by which a program lets a network card (libibverbs), a file system (libcufile) or the
 * processor (libgdrapi) reach memory of the GPU without CUDA. Such a registration names physical memory, which a pause
 * gives back, so libtms.so refuses to pause what is registered (registrations.c). cuFileRead and its kin are work like
 * any other of the gate's.
 *
 * NCCL, UCX and NIXL open these libraries themselves, and take the functions by dlsym or dlvsym. For each library that
 * answers there, a function has an entry of its own. Where the loader binds a function, ours finds the library that the
 * caller would have been bound to. */
#define _GNU_SOURCE
#include "nccl.h"
#include "../../../forward/symbols.h"
#include "../../../forward/words.h"

#include <errno.h>

enum { LIBRARIES = 4 };

/* X(symbol, library, how many arguments, address and size of the memory that it is about (0, 0: none),
 *   what it returns where it is refused, what is noted of its result) */
#define RDMA_CALLS(X) \
	X(ibv_reg_mr, "libibverbs.so", 4, b, c, 0, made(AT_ibv_reg_mr, result, b, c)) \
	X(ibv_reg_mr_iova, "libibverbs.so", 5, b, c, 0, made(AT_ibv_reg_mr_iova, result, b, c)) \
	X(ibv_reg_mr_iova2, "libibverbs.so", 5, b, c, 0, made(AT_ibv_reg_mr_iova2, result, b, c)) \
	/* The descriptor does not say where its memory lies; callers pass that as the card's address. */ \
	X(ibv_reg_dmabuf_mr, "libibverbs.so", 6, d, c, 0, made(AT_ibv_reg_dmabuf_mr, result, d, c)) \
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

static const char card[] = "a network card", storage[] = "GPUDirect Storage", processor[] = "GDRCopy";

static const struct registrar registrars[CALLS] = {
	[AT_ibv_reg_mr] = {card, "ibv_reg_mr", "ibv_dereg_mr"},
	[AT_ibv_reg_mr_iova] = {card, "ibv_reg_mr_iova", "ibv_dereg_mr"},
	[AT_ibv_reg_mr_iova2] = {card, "ibv_reg_mr_iova2", "ibv_dereg_mr"},
	[AT_ibv_reg_dmabuf_mr] = {card, "ibv_reg_dmabuf_mr", "ibv_dereg_mr"},
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
