/* The stack on which a handler of the host's runs after the library was used: the thread's own if it asked for no other
 * or, whatever SA_ONSTACK says, has no alternate one; otherwise its alternate stack. */
#include "host.h"

enum { LARGE = 100 << 10 }; /* more than the Go runtime's signal stack has */

static _Atomic int handled;
static __thread char *volatile alternate;
static __thread volatile bool ran_on_alternate;

static void on_signal(int signal)
{
	(void)signal;
	volatile char big[LARGE];
	memset((void *)big, 1, sizeof big);
	ran_on_alternate = alternate && (char *)big >= alternate && (char *)big < alternate + 4 * LARGE;
	atomic_fetch_add(&handled, big[5]);
}

static void *use(const char *tag)
{
	void *p = pausable(2 * MIB, tag, true);
	fill(p, 2 * MIB, 1);
	PAUSE_AND_RESUME(tag);
	CHECK(filled(p, 2 * MIB, 1));
	return p;
}

static void *without_a_stack(void *unused)
{
	void *p = use("without");
	for (int i = 0; i < 5; i++) {
		stack_t now;
		EXPECT(sigaltstack(NULL, &now), 0);
		EXPECT(now.ss_flags, SS_DISABLE);
		raise(SIGUSR1);
		if (i % 2)
			EXPECT(tms_pause("without"), 0);
		else
			EXPECT(tms_resume("without"), 0);
	}
	EXPECT(cudaFree(p), 0);
	return unused;
}

static void on_its_own(char *stack, int flags)
{
	alternate = stack;
	stack_t mine = {.ss_sp = stack, .ss_size = stack ? 4 * LARGE : 0, .ss_flags = stack ? flags : SS_DISABLE}, now;
	EXPECT(sigaltstack(&mine, NULL), 0);
	void *p = use("with");
	EXPECT(sigaltstack(NULL, &now), 0);
	EXPECT(now.ss_flags, mine.ss_flags);
	if (stack)
		CHECK(now.ss_sp == mine.ss_sp && now.ss_size == mine.ss_size);
	raise(SIGUSR1);
	EXPECT(ran_on_alternate, stack != NULL);
	raise(SIGUSR2);
	CHECK(!ran_on_alternate);
	EXPECT(cudaFree(p), 0);
}

/* The host may change its stack between calls, and free the memory. */
static void *with_a_stack(void *unused)
{
	for (int i = 0; i < 3; i++) {
		char *stack = malloc(4 * LARGE);
		CHECK(stack);
		on_its_own(stack, i % 2 ? (int)(1u << 31) /* SS_AUTODISARM */ : 0);
		on_its_own(NULL, 0);
		free(stack);
	}
	return unused;
}

/* A thread's last calls come from its destructors: then too it keeps its alternate stack. */
static pthread_key_t last;
static char *kept;

static void at_end(void *p)
{
	alternate = kept;
	EXPECT(cudaFree(p), 0);
	raise(SIGUSR1);
	CHECK(ran_on_alternate);
	static __thread int again;
	if (again++ < 2)
		EXPECT(pthread_setspecific(last, pausable(2 * MIB, "last", false)), 0);
}

static void *ending(void *unused)
{
	EXPECT(cudaFree(pausable(2 * MIB, "first", false)), 0);
	alternate = kept = malloc(4 * LARGE);
	stack_t mine = {.ss_sp = kept, .ss_size = 4 * LARGE};
	EXPECT(sigaltstack(&mine, NULL), 0);
	EXPECT(pthread_setspecific(last, pausable(2 * MIB, "last", false)), 0);
	return unused;
}

int main(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	EXPECT(sigaction(SIGUSR1, &action, NULL), 0);
	action.sa_flags = 0;
	EXPECT(sigaction(SIGUSR2, &action, NULL), 0);
	EXPECT(pthread_key_create(&last, at_end), 0);
	without_a_stack(NULL);
	with_a_stack(NULL);
	void *(*const of_threads[])(void *) = {without_a_stack, with_a_stack, ending};
	pthread_t thread[3];
	for (int i = 0; i < 3; i++)
		start(&thread[i], of_threads[i], NULL);
	join_all(thread, 3);
	CHECK(atomic_load(&handled) > 20);
	return 0;
}
