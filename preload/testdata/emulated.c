/* A sandbox traps system calls, and the program makes them in its handler for SIGSYS, which takes 512 KiB of a thread's
 * stack, or 8 of an alternate stack. The library's calls are answered as the program's are, also in its own handlers; a
 * call that the sandbox refuses is an error. Called as: emulated thread|alternate DIRECTORY */
#include "host.h"

#include <stddef.h>
#include <ucontext.h>

static const unsigned trapped[] = {
	SYS_openat, SYS_close, SYS_read,    SYS_pread64,     SYS_pwrite64,   SYS_fstat, SYS_newfstatat, SYS_ftruncate,
	SYS_ioctl,  SYS_fcntl, SYS_unlinkat, SYS_fallocate, SYS_getdents64, SYS_gettid, SYS_sched_getaffinity,
	SYS_getpid, SYS_geteuid, SYS_uname,      SYS_kcmp,        SYS_tgkill,
};
enum { TRAPPED = sizeof trapped / sizeof *trapped };

static size_t takes = 512 << 10;
static _Atomic long emulated;
static bool alternate; /* Go's threads have an alternate stack that is large enough */
static _Atomic long on_goroutine; /* the last call that came from a goroutine's stack, which has no room for a handler */
static atomic_bool refuses;

/* The one place whose system calls the sandbox lets through. */
extern const char let_through[];
__attribute__((noinline)) static long call(long number, const uintptr_t a[6])
{
#if defined(__x86_64__)
	register uintptr_t d __asm__("r10") = a[3], e __asm__("r8") = a[4], f __asm__("r9") = a[5];
	__asm__ volatile(".globl let_through\n\tsyscall\nlet_through:"
			 : "+a"(number)
			 : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(d), "r"(e), "r"(f)
			 : "rcx", "r11", "memory");
	return number;
#elif defined(__aarch64__)
	register long n __asm__("x8") = number;
	register uintptr_t x __asm__("x0") = a[0], b __asm__("x1") = a[1], c __asm__("x2") = a[2];
	register uintptr_t d __asm__("x3") = a[3], e __asm__("x4") = a[4], f __asm__("x5") = a[5];
	__asm__ volatile(".globl let_through\n\tsvc 0\nlet_through:"
			 : "+r"(x)
			 : "r"(n), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f)
			 : "memory");
	return (long)x;
#endif
}

static void emulate(int signal, siginfo_t *info, void *context)
{
	(void)signal;
#if defined(__x86_64__)
	const uintptr_t heap = 0xc0; /* Go's heap, with the stacks of goroutines, begins there */
#elif defined(__aarch64__)
	const uintptr_t heap = 0x40;
#endif
	if (!alternate && (uintptr_t)&info >> 32 == heap)
		atomic_store(&on_goroutine, info->si_syscall);
	volatile char frame[takes];
	for (size_t i = takes; i > 0; i -= 4096)
		frame[i - 1] = frame[takes - 1]; /* from the top, as calls would */
	mcontext_t *registers = &((ucontext_t *)context)->uc_mcontext;
#if defined(__x86_64__)
	const int at[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
	uintptr_t arguments[6];
	for (int i = 0; i < 6; i++)
		arguments[i] = (uintptr_t)registers->gregs[at[i]];
	long long *result = &registers->gregs[REG_RAX];
#elif defined(__aarch64__)
	const uintptr_t *arguments = (const uintptr_t *)registers->regs;
	unsigned long long *result = &registers->regs[0];
#endif
	bool refused = atomic_load(&refuses) && info->si_syscall == SYS_openat;
	*result = refused ? -EACCES : call(info->si_syscall, arguments);
	atomic_fetch_add(&emulated, 1);
}

static void sandbox(void)
{
	struct sigaction action = {.sa_sigaction = emulate, .sa_flags = SA_SIGINFO | SA_NODEFER};
	if (alternate) {
		static char stack[64 << 10];
		takes = 8 << 10;
		action.sa_flags |= SA_ONSTACK;
		EXPECT(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL), 0);
	}
	EXPECT(sigaction(SIGSYS, &action, NULL), 0);
	const uintptr_t place = (uintptr_t)let_through;
	struct sock_filter filter[TRAPPED + 7] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)place, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(place >> 32), TRAPPED + 1, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	for (unsigned i = 0; i < TRAPPED; i++)
		filter[5 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, trapped[i],
							     (unsigned char)(TRAPPED - i), 0);
	filter[5 + TRAPPED] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[6 + TRAPPED] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
	filter_calls(filter, TRAPPED + 7);
}

static volatile sig_atomic_t faults;

static void count_fault(int signal)
{
	(void)signal;
	faults++;
}

int main(int argc, char **argv)
{
	void *plain = NULL;
	CHECK(argc == 3);
	EXPECT(cudaMalloc(&plain, 4096), 0); /* CUDA is in use before */
	EXPECT(sigaction(SIGSEGV, &(struct sigaction){.sa_handler = count_fault}, NULL), 0);
	alternate = strcmp(argv[1], "alternate") == 0;
	sandbox();
	tms_set_disk_backup_dir(argv[2]);
	void *in_memory = kept_memory(MIB, "kept", 1);
	long before = atomic_load(&emulated);
	CHECK(before > 0);
	tms_set_enable_disk_backup(true);
	void *on_disk = pausable(MIB, "disk", false);
	tms_set_enable_disk_backup(false);
	fill(on_disk, MIB, 2);
	for (int i = 0; i < 3; i++)
		PAUSE_AND_RESUME(NULL);
	CHECK(atomic_load(&emulated) > before);
	atomic_store(&refuses, true);
	FAILS(tms_pause(NULL), 304, "permission denied");
	CHECK(filled(in_memory, MIB, 1) && filled(on_disk, MIB, 2));
	atomic_store(&refuses, false);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(in_memory, MIB, 1) && filled(on_disk, MIB, 2));
	before = atomic_load(&emulated);
	raise(SIGSEGV); /* the library's handler sends it to the program's by system calls */
	CHECK(faults == 1 && atomic_load(&emulated) > before);
	EXPECT(atomic_load(&on_goroutine), 0);
	return 0;
}
