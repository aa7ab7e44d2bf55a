/* handlers is the core of leaving the host's signals alone: the Go runtime installs handlers when
 * it starts; ours let Go see only what happens in Go code, and the host everything else. */
#define _GNU_SOURCE
#include "seam.h"

#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* Faults that Go turns into a panic, which the exports catch. Any other handler that Go installs
 * (SIGPIPE, SIGURG) serves Go programs, not a library, and goes. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};
enum { FAULTS = sizeof faults / sizeof *faults };

static struct sigaction host_action[NSIG];
static struct sigaction go_action[FAULTS];

static uintptr_t program_counter(const ucontext_t *context)
{
#if defined(__x86_64__)
	return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	return (uintptr_t)context->uc_mcontext.pc;
#else
#error "tell this function where the program counter is"
#endif
}

static bool in_library(uintptr_t pc)
{
	return pc >= (uintptr_t)__ehdr_start && pc < (uintptr_t)etext;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	int i = 0;
	while (i < FAULTS - 1 && faults[i] != signal)
		i++;
	/* si_code > 0: the kernel says so; a fault somebody sent belongs to the host. */
	if (info->si_code > 0 && go_thread != GO_THREAD_OUTSIDE &&
	    in_library(program_counter(context))) {
		go_action[i].sa_sigaction(signal, info, context);
		return;
	}
	struct sigaction *host = &host_action[signal];
	if (host->sa_flags & SA_SIGINFO) {
		host->sa_sigaction(signal, info, context);
	} else if (host->sa_handler == SIG_IGN && info->si_code <= 0) {
		return;
	} else if (host->sa_handler != SIG_DFL && host->sa_handler != SIG_IGN) {
		host->sa_handler(signal);
	} else {
		/* The default action, at the faulting instruction, for the right core: it runs again.
		 * A sent signal is sent again. */
		struct sigaction standard = {.sa_handler = SIG_DFL};
		sigaction(signal, &standard, NULL);
		if (info->si_code <= 0)
			syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
	}
}

HIDDEN void handlers_save(void)
{
	for (int signal = 1; signal < NSIG; signal++)
		sigaction(signal, NULL, &host_action[signal]);
}

HIDDEN void handlers_restore(void)
{
	for (int signal = 1; signal < NSIG; signal++) {
		struct sigaction now;
		if (sigaction(signal, NULL, &now) != 0 ||
		    (now.sa_sigaction == host_action[signal].sa_sigaction &&
		     now.sa_flags == host_action[signal].sa_flags))
			continue;
		int i = 0;
		while (i < FAULTS && faults[i] != signal)
			i++;
		if (i == FAULTS) {
			sigaction(signal, &host_action[signal], NULL);
			continue;
		}
		go_action[i] = now;
		/* The host's mask and flags, as far as they may differ from what Go needs. */
		struct sigaction ours = {.sa_sigaction = on_fault,
					 .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART |
						     (host_action[signal].sa_flags & SA_NODEFER)};
		ours.sa_mask = host_action[signal].sa_mask;
		sigaction(signal, &ours, NULL);
	}
}
