/* The host's actions for the signals of faults hold as if the library were not there: the handler that is set, the
 * handler before, the stack that it runs on, and how often it runs. This holds also while the library starts. */
#include "host.h"

#include <setjmp.h>

static sigjmp_buf back;
static volatile int handled, chained;
static char *volatile stack_of;
static char *alternate;
enum { ALTERNATE = 256 << 10 };
static char *paused;

static void recover(int signal)
{
	char here;
	stack_of = &here;
	handled++;
	(void)signal;
	siglongjmp(back, 1);
}

static void recover_with_information(int signal, siginfo_t *information, void *context)
{
	CHECK(signal == SIGSEGV && information->si_addr == paused && context);
	recover(signal);
}

static void other(int signal)
{
	(void)signal;
}

static struct sigaction before_chain;

static void pass_on(int signal, siginfo_t *information, void *context)
{
	chained++;
	before_chain.sa_sigaction(signal, information, context);
}

static bool on_alternate(void)
{
	return stack_of >= alternate && stack_of < alternate + ALTERNATE;
}

static void fault(void)
{
	if (sigsetjmp(back, 1) == 0) {
		*(volatile char *)paused = 1; /* out of reach */
		CHECK(!"reached");
	}
}

/* Calls Go, which arms the library's handlers again after a fault has restored the host's. */
static void use(void)
{
	EXPECT(tms_pause(NULL), 0);
}

static void set(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
	sigaddset(&action.sa_mask, SIGUSR1);
	EXPECT(sigaction(signal, &action, NULL), 0);
}

static void is_set(int signal, void *handler, unsigned flags)
{
	struct sigaction now;
	EXPECT(sigaction(signal, NULL, &now), 0);
	CHECK(now.sa_sigaction == handler);
	EXPECT((unsigned)now.sa_flags & (SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER | SA_RESTART), flags);
}

static void ask(void)
{
	struct sigaction old;
	is_set(SIGBUS, SIG_DFL, 0);
	CHECK(signal(SIGBUS, other) == SIG_DFL);
	is_set(SIGBUS, other, SA_RESTART);
	use();
	is_set(SIGBUS, other, SA_RESTART);
	CHECK(signal(SIGBUS, SIG_IGN) == other);
	use();
	is_set(SIGBUS, SIG_IGN, SA_RESTART);
	raise(SIGBUS);
	CHECK(signal(SIGBUS, SIG_DFL) == SIG_IGN);
	use();
	EXPECT(sigaction(SIGBUS, &(struct sigaction){.sa_handler = other, .sa_flags = SA_NODEFER}, &old), 0);
	CHECK(old.sa_handler == SIG_DFL);
	use();
	is_set(SIGBUS, other, SA_NODEFER);
	EXPECT(sigaction(SIGBUS, &old, NULL), 0);
	EXPECT(sigaction(SIGKILL, &old, NULL), -1);
	EXPECT(sigaction(SIGSEGV, NULL, &old), 0);
	sigset_t mask = old.sa_mask;
	CHECK(sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGUSR2));
}

static void faults_before_and_after(void)
{
	is_set(SIGSEGV, recover_with_information, SA_SIGINFO);
	for (int i = 0; i < 6; i++) {
		fault();
		EXPECT(handled, i + 1);
		CHECK(!on_alternate());
		if (i % 2)
			use();
	}
	set(SIGSEGV, recover_with_information, SA_ONSTACK);
	for (int i = 0; i < 4; i++) {
		use();
		fault();
		CHECK(on_alternate());
	}
	EXPECT(handled, 10);
}

/* A handler that keeps its predecessor and hands over to it. */
static void chain(void)
{
	use();
	struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO};
	EXPECT(sigaction(SIGSEGV, &action, &before_chain), 0);
	CHECK(before_chain.sa_sigaction == recover_with_information);
	handled = 0;
	for (int i = 0; i < 4; i++) {
		fault();
		EXPECT(handled, i + 1);
		EXPECT(chained, i + 1);
		use();
	}
	EXPECT(sigaction(SIGSEGV, &before_chain, NULL), 0);
}

/* A signal sent by a process, not by the processor: its value comes along. */
static volatile int sent;

static void on_sent(int signal, siginfo_t *information, void *context)
{
	(void)context;
	CHECK(signal == SIGSEGV || signal == SIGFPE);
	if (information->si_code == SI_QUEUE)
		EXPECT(information->si_value.sival_int, 7);
	else
		EXPECT(information->si_code, signal == SIGSEGV ? SI_USER : SI_TKILL);
	EXPECT(information->si_pid, getpid());
	sent++;
}

static void sent_signals(void)
{
	set(SIGSEGV, on_sent, 0);
	set(SIGFPE, on_sent, 0);
	for (int i = 0; i < 300; i += 3) {
		use();
		EXPECT(kill(getpid(), SIGSEGV), 0);
		EXPECT(sent, i + 1);
		use();
		EXPECT(raise(SIGFPE), 0);
		EXPECT(sent, i + 2);
		use();
		EXPECT(sigqueue(getpid(), SIGSEGV, (union sigval){.sival_int = 7}), 0);
		EXPECT(sent, i + 3);
	}
}

/* The kernel chooses a thread that does not block the signal: not one that runs the host's handler on Go's stack. */
static volatile pid_t sent_to;

static void on_pending(int signal)
{
	(void)signal;
	sent_to = gettid();
}

static void sent_while_blocked(void)
{
	sigset_t faults;
	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	EXPECT(sigaction(SIGSEGV, &(struct sigaction){.sa_handler = on_pending}, NULL), 0);
	for (int i = 0; i < 100; i++) {
		use();
		EXPECT(pthread_sigmask(SIG_BLOCK, &faults, NULL), 0);
		sent_to = 0;
		EXPECT(kill(getpid(), SIGSEGV), 0);
		usleep(100);
		EXPECT(sent_to, 0);
		EXPECT(pthread_sigmask(SIG_UNBLOCK, &faults, NULL), 0);
		for (int waited = 0; !sent_to && waited < 20000; waited++)
			usleep(1000);
		EXPECT(sent_to, getpid());
	}
}

static void once_only(void)
{
	set(SIGSEGV, recover_with_information, SA_RESETHAND);
	use();
	handled = 0;
	fault();
	EXPECT(handled, 1);
	is_set(SIGSEGV, SIG_DFL, SA_SIGINFO | SA_RESETHAND);
	use();
	pid_t child = fork();
	if (child == 0) {
		fault();
		_exit(0);
	}
	EXPECT(code_of(child), -SIGSEGV);
}

/* A child made while another thread was in sigaction, without calling atfork handlers, can call sigaction. */
static _Atomic bool forked_all;

static void *set_all_the_while(void *unused)
{
	while (!atomic_load(&forked_all))
		set(SIGBUS, recover_with_information, 0);
	return unused;
}

static void in_children(void)
{
	pthread_t thread;
	use();
	start(&thread, set_all_the_while, NULL);
	for (int i = 0; i < 500; i++) {
		pid_t child = _Fork();
		if (child == 0) {
			alarm(120);
			set(SIGSEGV, recover_with_information, 0);
			is_set(SIGSEGV, recover_with_information, SA_SIGINFO);
			_exit(0);
		}
		EXPECT(code_of(child), 0);
	}
	atomic_store(&forked_all, true);
	join(thread);
}

/* A child of vfork, with the parent's memory, sets every signal to its default before it executes a program, as
 * CPython's subprocess does. The parent's handlers stay. */
static void in_a_child_of_vfork(void)
{
	set(SIGSEGV, recover_with_information, 0);
	handled = 0;
	for (int i = 0; i < 4; i++) {
		if (i % 2)
			use();
		pid_t child = vfork();
		if (child == 0) {
			for (int signal = 1; signal < SIGRTMIN; signal++)
				sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		EXPECT(code_of(child), 0);
		is_set(SIGSEGV, recover_with_information, SA_SIGINFO);
		fault();
		EXPECT(handled, i + 1);
	}
}

/* The C library's other functions for it, some of which are deprecated. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
typedef void handler(int signal);
handler *bsd_signal(int, handler *), *ssignal(int, handler *), *sysv_signal(int, handler *), *sigset(int, handler *);
handler *__sysv_signal(int, handler *);
int __sigaction(int, const struct sigaction *, struct sigaction *);

static handler *(*const setters[])(int, handler *) = {signal, bsd_signal, ssignal, sysv_signal, __sysv_signal, sigset};
enum { SETTERS = sizeof setters / sizeof *setters };

static void by_other_functions(void)
{
	struct sigaction now;
	EXPECT(sigaction(SIGFPE, &(struct sigaction){.sa_handler = SIG_DFL}, NULL), 0);
	for (int i = 0; i < 2 * SETTERS; i++) {
		use();
		CHECK(setters[i % SETTERS](SIGFPE, other) == SIG_DFL);
		use();
		EXPECT(__sigaction(SIGFPE, NULL, &now), 0);
		CHECK(now.sa_handler == other);
		use();
		CHECK(setters[(i + i / SETTERS) % SETTERS](SIGFPE, SIG_DFL) == other);
	}
	use();
	CHECK(signal(SIGFPE, other) == SIG_DFL);
	is_set(SIGFPE, other, SA_RESTART);
	use();
	EXPECT(siginterrupt(SIGFPE, 1), 0);
	is_set(SIGFPE, other, 0);
	use();
	EXPECT(sigignore(SIGFPE), 0);
	is_set(SIGFPE, SIG_IGN, 0);
	use();
	CHECK(sigset(SIGFPE, SIG_DFL) == SIG_IGN);
	CHECK(sigset(SIGFPE, (handler *)2) == SIG_DFL); /* SIG_HOLD, which only blocks the signal */
	use();
	CHECK(sigset(SIGFPE, SIG_DFL) == (handler *)2);
}

/* One thread starts the library while another sets handlers: each stays set. */
static _Atomic bool go, started;

static void *start_library(void *unused)
{
	while (!atomic_load(&go))
		;
	EXPECT(cudaFree(pausable(2 * MIB, "first", false)), 0);
	atomic_store(&started, true);
	return unused;
}

static void another(int signal)
{
	other(signal);
}

static int race(int signal)
{
	pthread_t thread;
	EXPECT(cudaFree(NULL), 0);
	start(&thread, start_library, NULL);
	atomic_store(&go, true);
	for (int i = 0; !atomic_load(&started); i++) {
		struct sigaction action = {.sa_handler = i % 2 ? other : another}, now;
		EXPECT(sigaction(signal, &action, NULL), 0);
		for (int yields = 0; yields < 20; yields++)
			sched_yield();
		EXPECT(sigaction(signal, NULL, &now), 0);
		CHECK(now.sa_handler == action.sa_handler);
		EXPECT(now.sa_flags & SA_ONSTACK, 0);
	}
	join(thread);
	return 0;
}

/* A crash of the host's own code after the library was used is the host's affair: the process dies of it. */
static void crash(const char *how)
{
	paused = pausable(2 * MIB, "gone", false);
	use();
	if (strcmp(how, "abort") == 0)
		abort();
	if (strcmp(how, "sent") == 0)
		raise(SIGSEGV);
	for (int i = 0; strcmp(how, "restored") == 0 && i < SETTERS; i++) {
		setters[i](SIGSEGV, setters[(i + 1) % SETTERS](SIGSEGV, other));
		use();
	}
	*(volatile char *)paused = 1;
}

int main(int argc, char **argv)
{
	if (argc > 1 && atoi(argv[1]))
		return race(atoi(argv[1]));
	if (argc > 1)
		crash(argv[1]);
	alternate = malloc(ALTERNATE);
	EXPECT(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = ALTERNATE}, NULL), 0);
	set(SIGSEGV, recover_with_information, 0);
	paused = pausable(2 * MIB, "gone", false);
	use();
	ask();
	faults_before_and_after();
	chain();
	sent_signals();
	sent_while_blocked();
	in_children();
	in_a_child_of_vfork();
	by_other_functions();
	once_only();
	EXPECT(tms_resume(NULL), 0);
	EXPECT(cudaFree(paused), 0);
	return 0;
}
