/* handlers leaves the host's signals alone. The Go runtime cannot install a handler (scripts/build.sh gives it a
 * sigaction of its own). For the faults that it turns into a panic the handler is ours; sigaction and signal below let
 * the host set and read its actions as if ours were not there. When a signal is the host's, the host's action is put
 * back and the signal comes again. */
#define _GNU_SOURCE
#include "goruntime.h"
#include "forward.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE};
enum { FAULTS = sizeof faults / sizeof *faults };

static struct sigaction go_action[FAULTS];
static struct sigaction host_action[FAULTS]; /* while a handler is armed; read and written under the lock */
HIDDEN _Atomic unsigned handlers_armed;
HIDDEN handlers_take *_Atomic handlers_taker;

/* What the functions below interpose. */
static struct {
	__typeof__(sigaction) *sigaction;
	__typeof__(signal) *signal, *sysv_signal;
} next;

HIDDEN void handlers_find(void)
{
	static atomic_bool found;
	if (likely(atomic_load_explicit(&found, memory_order_acquire)))
		return;
	next.sigaction = (__typeof__(sigaction) *)forward_next("sigaction");
	next.signal = (__typeof__(signal) *)forward_next("signal");
	next.sysv_signal = (__typeof__(signal) *)forward_next("__sysv_signal");
	atomic_store_explicit(&found, true, memory_order_release);
}

/* A lock that is held with every signal blocked, because a handler may take it too. It has the number of the process
 * that holds it, so a child that was forked meanwhile takes it over. */
static _Atomic pid_t holder;

static void lock(sigset_t *saved)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, saved);
	pid_t mine = getpid(), held = 0;
	while (!atomic_compare_exchange_strong(&holder, &held, mine)) {
		if (held == mine) {
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
			held = 0;
		}
	}
}

static void unlock(const sigset_t *saved)
{
	atomic_store(&holder, 0);
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}

static int fault_number(int signal)
{
	for (int i = 0; i < FAULTS; i++)
		if (faults[i] == signal)
			return i;
	return -1;
}

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

/* From goinit.ld; weak, because a test binary is linked without it. */
extern const char gotext_start[] __attribute__((weak)) HIDDEN;
extern const char gotext_end[] __attribute__((weak)) HIDDEN;

static bool in_go(uintptr_t pc)
{
	return pc >= (uintptr_t)gotext_start && pc < (uintptr_t)gotext_end;
}

/* A fault happens anew when its instruction runs again, with the host's action in place. A signal that somebody sent,
 * or that reports damaged memory nobody touched, must be sent again. It goes to this thread: any other that does not
 * block it could be one of Go's, on whose stacks no handler of the host's fits. */
static void send_again(int signal, siginfo_t *info, ucontext_t *context)
{
	if (thread_known && thread_known->visit)
		sigaddset(&context->uc_sigmask, signal); /* inside Go it comes when the thread has left */
	syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), signal, info);
}

/* A signal for which the kernel chose a thread of Go's goes to the main thread. A thread may send SI_USER only to
 * itself. */
static void hand_over(int signal, siginfo_t *info)
{
	if (info->si_code >= 0)
		info->si_code = SI_QUEUE;
	syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), signal, info);
}

enum { AUTODISARM = (int)(1u << 31) }; /* SS_AUTODISARM: in a handler there is no alternate stack; Go wants one */

/* The first fault of a visit comes on the stack that the thread had. The thread's own alternate stack is good enough
 * for Go; a goroutine's has room for this much. There the fault happens anew with our stack in place, which the kernel
 * sees to as this handler returns. (On an alternate stack it does not: that is in use until the handler has
 * returned.) */
static bool on_its_stack(int i, ucontext_t *context)
{
	struct visit *visit = thread_known ? thread_known->visit : NULL;
	stack_t *stack = &context->uc_stack;
	if (visit && stack->ss_flags & (SS_DISABLE | AUTODISARM)) {
		visit->stack = *stack;
		visit->has_faulted = true;
		*stack = thread_known->faults;
		return false;
	}
	if (visit && (uintptr_t)visit - (uintptr_t)stack->ss_sp < stack->ss_size) {
		/* This overwrote the frame of a host's handler on that stack. */
		next.sigaction(faults[i], &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
		return false;
	}
	return true;
}

static bool taken(const void *address)
{
	handlers_take *take = atomic_load(&handlers_taker);
	return take && take(address);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	int i = fault_number(signal);
	bool happened = info->si_code > 0 && !(signal == SIGBUS && info->si_code == BUS_MCEERR_AO);
	if (happened && signal == SIGBUS && taken(info->si_addr))
		return;
	if (happened && in_go(program_counter(context))) {
		if (on_its_stack(i, context))
			go_action[i].sa_sigaction(signal, info, context);
		return;
	}
	int error = errno;
	if (!happened && threads_is_ours) {
		hand_over(signal, info);
		errno = error;
		return;
	}
	sigset_t saved;
	lock(&saved);
	if (atomic_load(&handlers_armed) & 1u << i) {
		next.sigaction(signal, &host_action[i], NULL);
		atomic_fetch_and(&handlers_armed, ~(1u << i));
	}
	unlock(&saved);
	if (!happened)
		send_again(signal, info, context);
	errno = error;
}

/* Reports whether our handler may replace the one in place: sigaction below must know that one when the host asks.
 * Another was set past us, by system call, and may hold ours to pass on to. An ignored signal stays ignored, because an
 * executed program inherits that. */
static bool replaceable(int i, const struct sigaction *now)
{
	static bool replaced[FAULTS];
	if (now->sa_handler == SIG_IGN || now->sa_sigaction == on_fault)
		return false;
	bool known = !replaced[i] || now->sa_handler == SIG_DFL || now->sa_sigaction == host_action[i].sa_sigaction;
	replaced[i] = true;
	return known;
}

HIDDEN void handlers_arm(void)
{
	/* Go's own flags, and its mask: every signal. */
	static const struct sigaction ours = {
		.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART, .sa_mask = {{-1ul}}};
	handlers_find();
	sigset_t saved;
	lock(&saved);
	for (int i = 0; i < FAULTS; i++) {
		struct sigaction now;
		next.sigaction(faults[i], NULL, &now);
		/* Go has none while it is asleep, or in a test binary, which has its own. */
		bool wanted = go_action[i].sa_sigaction || (faults[i] == SIGBUS && atomic_load(&handlers_taker));
		if (wanted && replaceable(i, &now))
			next.sigaction(faults[i], &ours, &host_action[i]); /* as it is at this moment */
	}
	atomic_store(&handlers_armed, HANDLERS_ALL);
	unlock(&saved);
}

/* The Go runtime calls this for sigaction. While it starts, it sees nothing but defaults, and all that it sets is
 * noted. Later it sets an action only to die by it. */
HIDDEN int __wrap_sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	if (atomic_load(&go_state) != GO_STARTING) {
		handlers_find();
		return next.sigaction(signal, action, old);
	}
	int i = fault_number(signal);
	if (action && i >= 0)
		go_action[i] = *action;
	if (old)
		*old = (struct sigaction){.sa_handler = SIG_DFL};
	return 0;
}

/* Reports whether a call is no concern of ours. While Go is asleep none is our concern, unless the library takes faults
 * itself. */
static bool passed_on(int signal)
{
	handlers_find();
	return likely(fault_number(signal) < 0 || (atomic_load(&go_state) == GO_ASLEEP && !atomic_load(&handlers_taker)));
}

/* The host's action has replaced ours; handlers_arm takes it from there. */
static void replaced_by_host(int i)
{
	next.sigaction(faults[i], NULL, &host_action[i]);
	atomic_fetch_and(&handlers_armed, ~(1u << i));
}

EXPORT int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	if (passed_on(signal))
		return next.sigaction(signal, action, old);
	int i = fault_number(signal);
	struct sigaction wanted, was;
	if (action)
		wanted = *action; /* a bad pointer faults here, while faults are not blocked */
	sigset_t saved;
	lock(&saved);
	int code = next.sigaction(signal, action ? &wanted : NULL, &was);
	if (code == 0 && was.sa_sigaction == on_fault)
		was = host_action[i];
	if (code == 0 && action)
		replaced_by_host(i);
	unlock(&saved);
	if (code == 0 && old)
		*old = was;
	return code;
}

static sighandler_t set_handler(__typeof__(signal) *set, int signal, sighandler_t handler)
{
	int i = fault_number(signal);
	sigset_t saved;
	lock(&saved);
	sighandler_t was = set(signal, handler);
	if ((void *)was == (void *)on_fault)
		was = host_action[i].sa_handler;
	if (was != SIG_ERR)
		replaced_by_host(i);
	unlock(&saved);
	return was;
}

EXPORT sighandler_t signal(int signal, sighandler_t handler)
{
	return passed_on(signal) ? next.signal(signal, handler) : set_handler(next.signal, signal, handler);
}

/* signal, in a program that is compiled for the System V standard. */
EXPORT sighandler_t __sysv_signal(int signal, sighandler_t handler)
{
	return passed_on(signal) ? next.sysv_signal(signal, handler)
				 : set_handler(next.sysv_signal, signal, handler);
}
