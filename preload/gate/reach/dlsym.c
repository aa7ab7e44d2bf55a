/* dlsym stands in front of dlsym and dlvsym, for programs whose CUDA calls the loader does not bind: a
 * static libcudart, libcudart itself, JAX and CuPy take the driver's functions from a handle of libcuda.so.1. If
 * libtms.so has a function of that name, of the driver or of NVML, the answer is that function. nccl.c answers for
 * functions of NCCL, rdma.c for functions that register memory elsewhere, which NCCL takes by dlvsym. Every other call
 * jumps on to the next dlsym, which may belong to another interposing library: RTLD_NEXT and RTLD_DEFAULT depend on the
 * caller, which dlsym knows by the return address. calls.c has the calls that pass the gate. */
#define _GNU_SOURCE
#include "reach.h"
#include "../../../forward/symbols.h"

static inline bool of_driver(void *handle, const char *name)
{
	return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z' && handle != RTLD_DEFAULT &&
	       handle != RTLD_NEXT && atomic_load_explicit(&reach_tms, memory_order_relaxed);
}

static inline bool of_nvml(void *handle, const char *name)
{
	return name && name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l' && handle != RTLD_DEFAULT &&
	       handle != RTLD_NEXT && atomic_load_explicit(&reach_tms, memory_order_relaxed);
}

static inline bool of_nccl(void *handle, const char *name)
{
	return name && name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l' && handle != RTLD_DEFAULT &&
	       handle != RTLD_NEXT;
}

static inline bool of_rdma(void *handle, const char *name)
{
	static const char prefixes[][5] = {"ibv_", "mlx5", "cuFi", "cuLo", "gdr_"};
	for (int i = 0; name && handle != RTLD_DEFAULT && handle != RTLD_NEXT && i < 5; i++) {
		int same = 0;
		while (same < 4 && name[same] == prefixes[i][same])
			same++;
		if (same == 4)
			return true;
	}
	return false;
}

/* theirs is the next dlsym's answer, which may be a function of that dlsym's library in front of the driver's. */
static void *chosen(void *handle, const char *name, void *theirs, const void *caller)
{
	void *drivers = theirs && reach_is_hooked() ? reach_c_dlsym(handle, name) : theirs;
	void *found = drivers ? reach_tms(name, drivers, caller) : NULL;
	if (found)
		return found == drivers ? theirs : found; /* libtms.so itself gets theirs */
	return is_of_driver(drivers) ? calls_entry(name, theirs) : NULL;
}

/* The entries call these first, and go on to the next dlsym if they return NULL. */
HIDDEN void *reach_answer(void *handle, const char *name, const void *caller)
{
	reach_prepare();
	if (of_nccl(handle, name)) {
		void *theirs = reach_dlsym(handle, name);
		return theirs ? nccl_entry(name, theirs) : NULL;
	}
	if (of_rdma(handle, name))
		return rdma_entry(name, reach_dlsym(handle, name));
	if (of_nvml(handle, name)) {
		void *theirs = reach_dlsym(handle, name);
		return theirs ? reach_tms(name, theirs, caller) : NULL;
	}
	if (!of_driver(handle, name))
		return NULL;
	return chosen(handle, name, reach_dlsym(handle, name), caller);
}

/* The first version of libibverbs has other structures, and no memory of a GPU. */
HIDDEN void *reach_answer_version(void *handle, const char *name, const char *version)
{
	reach_prepare();
	if (!of_rdma(handle, name) || !version || equal(version, "IBVERBS_1.0"))
		return NULL;
	return rdma_entry(name, reach_dlvsym(handle, name, version));
}

#define CHOICE(name) CHOICE_##name
#define CHOICE_dlsym
#define CHOICE_dlvsym "_version"
#if defined(__x86_64__)
/* Three pushes and the return address keep the stack aligned to 16 bytes. */
#define ENTRY(name, caller)                                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ",@function\n"                                      \
		".globl reach_entry_" #name "\n.hidden reach_entry_" #name "\n"                           \
		#name ":\nreach_entry_" #name ":\n"                                                       \
		"	endbr64\n"                                                                         \
		"	push %rdi\n	push %rsi\n	push %rdx\n"                                       \
		caller "	call reach_answer" CHOICE(name) "\n"                                       \
		"	pop %rdx\n	pop %rsi\n	pop %rdi\n"                                        \
		"	test %rax, %rax\n	jnz 1f\n"                                                  \
		"	jmp *reach_" #name "(%rip)\n"                                                      \
		"1:	ret\n.size " #name ", .-" #name "\n")
ENTRY(dlsym, "	mov 24(%rsp), %rdx\n");
#elif defined(__aarch64__)
#define ENTRY(name, caller)                                                                                \
	__asm__(".text\n.globl " #name "\n.type " #name ",%function\n"                                      \
		".globl reach_entry_" #name "\n.hidden reach_entry_" #name "\n"                           \
		#name ":\nreach_entry_" #name ":\n"                                                       \
		"	hint #34\n"                                                                        \
		"	stp x29, x30, [sp, #-48]!\n	mov x29, sp\n"                                     \
		"	stp x0, x1, [sp, #16]\n	str x2, [sp, #32]\n"                                       \
		caller "	bl reach_answer" CHOICE(name) "\n"                                         \
		"	mov x16, x0\n"                                                                     \
		"	ldr x2, [sp, #32]\n	ldp x0, x1, [sp, #16]\n	ldp x29, x30, [sp], #48\n"         \
		"	cbnz x16, 1f\n"                                                                    \
		"	adrp x16, reach_" #name "\n	ldr x16, [x16, #:lo12:reach_" #name "]\n	br x16\n"  \
		"1:	mov x0, x16\n	ret\n.size " #name ", .-" #name "\n")
ENTRY(dlsym, "	mov x2, x30\n");
#else
#error "write the two entries for this processor"
#endif
ENTRY(dlvsym, "");
