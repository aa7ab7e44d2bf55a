/* handlers leaves the host's signals alone. The Go runtime cannot install a handler (scripts/build.sh gives it a
 * sigaction of its own). This library installs handlers for the faults that Go turns into a panic, and, while the
 * program is paused, for the signals that ask it to end. sigaction and signal below let the host set and read its
 * actions as if these handlers were not there. If a signal is the host's, the handler puts the host's action back and
 * makes the signal come again. */
#define _GNU_SOURCE
#include "goruntime.h"
#include "forward.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGINT, SIGTERM, SIGHUP};
enum { FAULTS = 3, SIGNALS = sizeof signals / sizeof *signals }; /* the faults come first */

static struct sigaction go_action[FAULTS];
/* The host's actions, in use where the kernel has this library's. They are written under the lock, and never by a child
 * of vfork, which has its own dispositions but the parent's memory. */
static struct sigaction host_action[SIGNALS];
static struct fork_mark arming; /* of the process that has armed */
HIDDEN _Atomic unsigned handlers_armed;
HIDDEN handlers_take *_Atomic handlers_taker;

/* Functions of the C library that return the handler that was set before; ssignal and bsd_signal are names of signal,
 * sysv_signal of __sysv_signal. */
#define SETTERS(X) X(signal) X(__sysv_signal) X(sigset)

/* The C library's functions, which the functions below interpose. */
static struct {
	__typeof__(sigaction) *sigaction;
#define X(name) sighandler_t (*name)(int signal, sighandler_t handler);
	SETTERS(X)
#undef X
	int (*sigignore)(int signal), (*siginterrupt)(int signal, int interrupt);
} next;

HIDDEN void handlers_find(void)
{
	static atomic_bool found;
	if (likely(atomic_load_explicit(&found, memory_order_acquire)))
		return;
#define X(name) next.name = (__typeof__(next.name))forward_next(#name);
	X(sigaction)
	SETTERS(X)
	X(sigignore)
	X(siginterrupt)
#undef X
	atomic_store_explicit(&found, true, memory_order_release);
}

/* Reports whether this is a child of vfork: its memory is that of the process that has armed. */
static bool borrows(void)
{
	return fork_other_process(&arming) && !(atomic_load(&arming.page) && fork_happened(&arming));
}

/* A lock that is held with signals blocked, because a handler may take it too. (A sandbox answers system calls in its
 * handler for SIGSYS; blocked, that would end the process.) The lock has the number of the process that holds it, so a
 * child that was forked at that time takes it over. */
static _Atomic pid_t holder;

static void lock(sigset_t *saved)
{
	sigset_t all;
	sigfillset(&all);
	sigdelset(&all, SIGSYS);
	pthread_sigmask(SIG_SETMASK, &all, saved);
	pid_t mine = getpid(), held = 0;
	while (!atomic_compare_exchange_strong(&holder, &held, mine)) {
		if (held == mine || borrows()) {
			/* Not by nanosleep, where the thread may be cancelled. */
			syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 20000}, NULL);
			held = 0;
		}
	}
}

static void unlock(const sigset_t *saved)
{
	atomic_store(&holder, 0);
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}

static int number_of(int signal)
{
	for (int i = 0; i < SIGNALS; i++)
		if (signals[i] == signal)
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

static void on_fault(int signal, siginfo_t *info, void *context);
static void on_end(int signal, siginfo_t *info, void *context);

static bool is_ours(const struct sigaction *action)
{
	return action->sa_sigaction == on_fault || action->sa_sigaction == on_end;
}

/* A fault happens again when its instruction runs again, with the host's action in place. A signal that a process sent,
 * or that reports damaged memory that no instruction touched, must be sent again. It goes to this thread: another
 * thread that does not block it could be one of Go's, whose stacks are too small for the host's handlers. */
static void send_again(int signal, siginfo_t *info, ucontext_t *context)
{
	if (thread_known && thread_known->visit)
		sigaddset(&context->uc_sigmask, signal); /* inside Go it comes when the thread has left */
	syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info);
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
 * for Go. A goroutine's stack has room for this handler; there the fault happens again with this library's stack in
 * place, which the kernel installs when the handler returns. (On an alternate stack it does not: that is in use until
 * the handler has returned.) */
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
		next.sigaction(signals[i], &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
		return false;
	}
	return true;
}

/* The next entry into Go sets our handler again. Under the lock. */
static void disarm(int i)
{
	if (i < FAULTS && !borrows())
		atomic_fetch_and(&handlers_armed, ~(1u << i));
}

/* Replaces this library's action by the host's, and returns the action that was in place. The kernel says which that
 * was: another thread may have been faster, and a child of vfork has changed only its own. */
static struct sigaction give_back(int i)
{
	struct sigaction now;
	sigset_t saved;
	lock(&saved);
	next.sigaction(signals[i], NULL, &now);
	if (is_ours(&now))
		next.sigaction(signals[i], &host_action[i], NULL);
	disarm(i);
	unlock(&saved);
	return now;
}

static bool taken(const void *address)
{
	handlers_take *take = atomic_load(&handlers_taker);
	return take && take(address);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	int i = number_of(signal);
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
	give_back(i);
	if (!happened)
		send_again(signal, info, context);
	errno = error;
}

static _Atomic unsigned ends_came; /* a bit for each signal that did, 1 << its number */

HIDDEN int handlers_end_came(void)
{
	unsigned came = atomic_exchange(&ends_came, 0);
	return came ? __builtin_ctz(came) : 0;
}

/* Nothing shows afterwards that the program's handler has run, so on_end runs before it. If on_end is no longer in
 * place, another thread has put the program's action back, or an action that was set by system call has on_end as the
 * previous one and passes the signal on. A child has the handler, too, and perhaps the memory, but its signals do not
 * count here. */
static void on_end(int signal, siginfo_t *info, void *context)
{
	const int i = number_of(signal), error = errno;
	if (!fork_other_process(&arming))
		atomic_fetch_or(&ends_came, 1u << signal);
	const struct sigaction now = give_back(i), host = host_action[i];
	errno = error;
	if (is_ours(&now) || now.sa_sigaction == host.sa_sigaction)
		send_again(signal, info, context);
	else if (host.sa_flags & SA_SIGINFO)
		host.sa_sigaction(signal, info, context);
	else if (host.sa_handler != SIG_DFL && host.sa_handler != SIG_IGN)
		host.sa_handler(signal);
	errno = error;
}

/* Reports whether this library's handler may replace the one in place, which sigaction below must know when the host
 * asks. Any other handler was set by system call, and may pass signals on to this library's. An ignored signal stays
 * ignored, because an executed program inherits that. */
static bool replaceable(int i, const struct sigaction *now)
{
	static bool replaced[SIGNALS];
	if (now->sa_handler == SIG_IGN || is_ours(now))
		return false;
	bool known = !replaced[i] || now->sa_handler == SIG_DFL || now->sa_sigaction == host_action[i].sa_sigaction;
	replaced[i] = true;
	return known;
}

HIDDEN void handlers_arm(void)
{
	/* Go's own flags, and its mask but for a sandbox's signal: on_fault makes system calls. */
	static const struct sigaction ours = {.sa_sigaction = on_fault,
					      .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART,
					      .sa_mask = {{~(1ul << (SIGSYS - 1))}}};
	handlers_find();
	if (borrows())
		return;
	sigset_t saved;
	lock(&saved);
	if (!atomic_load(&arming.process) || fork_happened(&arming))
		fork_mark_set(&arming);
	for (int i = 0; i < FAULTS; i++) {
		struct sigaction now;
		next.sigaction(signals[i], NULL, &now);
		/* Go has none while it is asleep, or in a test binary, which has its own. */
		bool wanted = go_action[i].sa_sigaction || (signals[i] == SIGBUS && atomic_load(&handlers_taker));
		if (wanted && replaceable(i, &now))
			next.sigaction(signals[i], &ours, &host_action[i]); /* as it is at this moment */
	}
	atomic_store(&handlers_armed, HANDLERS_ALL);
	unlock(&saved);
}

static _Atomic unsigned ends_watched; /* a bit for each, 1 << its index */

/* Without a handler of the program, the kernel ends the program or ignores the signal, and this library does nothing.
 * Its handler has the flags of the program's, so that an interrupted system call goes on, or not, as it would without
 * the library. Call this under the lock. */
static void watch_end(int i)
{
	struct sigaction now;
	next.sigaction(signals[i], NULL, &now);
	if (!(atomic_load(&ends_watched) & 1u << i) || now.sa_handler == SIG_DFL || !replaceable(i, &now))
		return;
	now.sa_flags = (now.sa_flags & (SA_ONSTACK | SA_RESTART)) | SA_SIGINFO;
	now.sa_sigaction = on_end;
	sigfillset(&now.sa_mask);
	sigdelset(&now.sa_mask, SIGSYS);
	next.sigaction(signals[i], &now, &host_action[i]); /* as it is at this moment */
}

HIDDEN void handlers_watch_ends(bool hangup)
{
	handlers_arm(); /* finds the functions, and marks the process */
	sigset_t saved;
	lock(&saved);
	for (int i = FAULTS; i < SIGNALS; i++) {
		if (signals[i] != SIGHUP || hangup)
			atomic_fetch_or(&ends_watched, 1u << i);
		watch_end(i);
	}
	unlock(&saved);
}

HIDDEN void handlers_leave_ends(void)
{
	atomic_store(&ends_watched, 0);
	for (int i = FAULTS; i < SIGNALS; i++)
		give_back(i);
	atomic_store(&ends_came, 0);
}

/* The Go runtime calls this for sigaction. While it starts, it sees nothing but defaults, and all that it sets is
 * noted. Later it sets an action only to die by it. */
HIDDEN int __wrap_sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	if (atomic_load(&go_state) != GO_STARTING) {
		handlers_find();
		return next.sigaction(signal, action, old);
	}
	int i = number_of(signal);
	if (action && i >= 0 && i < FAULTS)
		go_action[i] = *action;
	if (old)
		*old = (struct sigaction){.sa_handler = SIG_DFL};
	return 0;
}

/* Reports whether a call does not concern this library. While Go is asleep no call does, unless the library takes
 * faults itself. */
static bool passed_on(int signal)
{
	handlers_find();
	return likely(number_of(signal) < 0 || (atomic_load(&go_state) == GO_ASLEEP && !atomic_load(&handlers_taker)));
}

/* The host has set an action; handlers_arm and watch_end take it from there. Under the lock. */
static void set_by_host(int i)
{
	if (borrows())
		return;
	next.sigaction(signals[i], NULL, &host_action[i]);
	disarm(i);
	if (i >= FAULTS)
		watch_end(i);
}

EXPORT int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	if (passed_on(signal))
		return next.sigaction(signal, action, old);
	int i = number_of(signal);
	struct sigaction wanted, was;
	if (action)
		wanted = *action; /* a bad pointer faults here, while faults are not blocked */
	sigset_t saved;
	lock(&saved);
	int code = next.sigaction(signal, action ? &wanted : NULL, &was);
	if (code == 0 && is_ours(&was))
		was = host_action[i];
	if (code == 0 && action)
		set_by_host(i);
	unlock(&saved);
	if (code == 0 && old)
		*old = was;
	return code;
}

EXPORT int __sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	return sigaction(signal, action, old);
}

static sighandler_t set_handler(sighandler_t (*set)(int, sighandler_t), int signal, sighandler_t handler)
{
	if (passed_on(signal))
		return set(signal, handler);
	int i = number_of(signal);
	sigset_t saved;
	lock(&saved);
	sighandler_t was = set(signal, handler);
	if (is_ours(&(struct sigaction){.sa_handler = was}))
		was = host_action[i].sa_handler;
	if (was != SIG_ERR)
		set_by_host(i);
	unlock(&saved);
	return was;
}

EXPORT sighandler_t signal(int signal, sighandler_t handler)
{
	handlers_find();
	return set_handler(next.signal, signal, handler);
}

#define ALSO(name, of) EXPORT sighandler_t name(int, sighandler_t) __attribute__((alias(#of), nothrow, leaf))
ALSO(ssignal, signal);
ALSO(bsd_signal, signal);

/* signal, in a program that is compiled for the System V standard. */
EXPORT sighandler_t __sysv_signal(int signal, sighandler_t handler)
{
	handlers_find();
	return set_handler(next.__sysv_signal, signal, handler);
}

ALSO(sysv_signal, __sysv_signal);

/* For functions that look at the thread's mask, or read an action and set it again. They run without the lock, which
 * blocks signals, so the host's action is put in place first. */
#define ON_THE_HOSTS_OWN(signal, call)                                                             \
	({                                                                                         \
		bool concerns_ = !passed_on(signal);                                               \
		if (concerns_)                                                                     \
			give_back(number_of(signal));                                           \
		__typeof__(call) result_ = (call);                                                 \
		if (concerns_)                                                                     \
			host_has_set(number_of(signal));                                        \
		result_;                                                                           \
	})

static void host_has_set(int i)
{
	struct sigaction now;
	sigset_t saved;
	lock(&saved);
	next.sigaction(signals[i], NULL, &now);
	if (!is_ours(&now)) /* else another thread has armed since */
		set_by_host(i);
	unlock(&saved);
}

EXPORT sighandler_t sigset(int signal, sighandler_t handler)
{
	sighandler_t was = ON_THE_HOSTS_OWN(signal, next.sigset(signal, handler));
	return is_ours(&(struct sigaction){.sa_handler = was}) ? host_action[number_of(signal)].sa_handler : was;
}

EXPORT int sigignore(int signal)
{
	return ON_THE_HOSTS_OWN(signal, next.sigignore(signal));
}

EXPORT int siginterrupt(int signal, int interrupt)
{
	return ON_THE_HOSTS_OWN(signal, next.siginterrupt(signal, interrupt));
}
