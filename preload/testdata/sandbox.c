/* Becomes a program in a sandbox. Called as: sandbox strict|old|forbidden PROGRAM ARGUMENTS */
#include "host.h"

/* The system calls of glibc's loader, and of a program that does nothing. */
static const unsigned allowed[] = {
#ifdef SYS_arch_prctl
	SYS_arch_prctl,
#endif
#ifdef SYS_access
	SYS_access,
#endif
	SYS_brk,    SYS_close,	SYS_execve,	  SYS_exit_group,      SYS_faccessat,	SYS_fstat,
	SYS_getrandom, SYS_mmap, SYS_mprotect,	  SYS_munmap,	       SYS_newfstatat,	SYS_openat,
	SYS_pread64, SYS_prlimit64, SYS_read,	  SYS_rseq,	       SYS_set_robust_list, SYS_set_tid_address,
};
enum { ALLOWED = sizeof allowed / sizeof *allowed };

/* The program may make the system calls of a start and an end, and is killed for any other. */
static void strict(void)
{
	struct sock_filter filter[ALLOWED + 3];
	unsigned n = 0;
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < ALLOWED; i++)
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
							   (unsigned char)(ALLOWED - i), 0);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter_calls(filter, n);
}

/* There is no close_range, as on older kernels and in containers. */
static void without_close_range(unsigned unshare)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 436 /* close_range */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, unshare),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter_calls(filter, sizeof filter / sizeof *filter);
}

static void old(void)
{
	without_close_range(SECCOMP_RET_ALLOW);
}

static void forbidden(void)
{
	without_close_range(SECCOMP_RET_ERRNO | EPERM);
}

int main(int argc, char **argv)
{
	CHECK(argc > 2 && RUN_PART(argv[1], {"strict", strict}, {"old", old}, {"forbidden", forbidden}));
	execv(argv[2], argv + 2);
	return 97;
}
