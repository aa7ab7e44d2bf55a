/* Becomes a program that may make the system calls of a start and an end, and is killed for any other, as in a strict
 * sandbox. Called as: sandbox PROGRAM ARGUMENTS */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

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

int main(int argc, char **argv)
{
	struct sock_filter filter[ALLOWED + 3];
	unsigned n = 0;
	if (argc < 2)
		return 98;
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < ALLOWED; i++)
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
							   (unsigned char)(ALLOWED - i), 0);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {(unsigned short)n, filter};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
		perror("seccomp");
		return 99;
	}
	execv(argv[1], argv + 1);
	return 97;
}
