/* A fault inside Go becomes an error code, in a thread's first call and in later calls, and the thread goes on
 * to work. The fault here is a bad pointer of the program's own, which Go reads. */
#include "host.h"

enum { PANIC = 999 };
static uintptr_t address;

static void open_fault_signals(bool open)
{
	sigset_t all;
	sigfillset(&all);
	EXPECT(pthread_sigmask(open ? SIG_UNBLOCK : SIG_BLOCK, &all, NULL), 0);
}

static const char *const bad[] = {(void *)16, (void *)0x123456789000, (void *)-4096};

enum { BLOCKED = 1, WITH_A_STACK = 2, DISARMED = 4 };

/* BLOCKED: every signal is blocked, faults too. WITH_A_STACK: the thread has an alternate stack of its own; DISARMED:
 * that stack is disabled while a handler runs. */
static void *fault(void *how)
{
	bool blocked = (intptr_t)how & BLOCKED;
	char *stack = (intptr_t)how & WITH_A_STACK ? malloc(64 << 10) : NULL;
	int flags = (intptr_t)how & DISARMED ? (int)(1u << 31) /* SS_AUTODISARM */ : 0;
	stack_t before = {.ss_sp = stack, .ss_size = 64 << 10, .ss_flags = flags}, now;
	if (stack)
		EXPECT(sigaltstack(&before, NULL), 0);
	open_fault_signals(!blocked);
	for (int i = 0; i < 3; i++) {
		FAILS(tms_prepare(bad[i], false), PANIC, "internal error");
		EXPECT(sigaltstack(NULL, &now), 0);
		EXPECT(now.ss_flags, stack ? flags : SS_DISABLE);
		CHECK(now.ss_sp == stack);
	}
	if (stack) {
		EXPECT(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL), 0);
		free(stack);
	}
	sigset_t mask;
	EXPECT(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
	EXPECT(sigismember(&mask, SIGSEGV), blocked);
	EXPECT(cuMemSetAccess(address, 2 * MIB, &readwrite, 1), 0);
	fill((void *)address, 2 * MIB, 5);
	PAUSE_AND_RESUME("chunk");
	CHECK(filled((void *)address, 2 * MIB, 5));
	return NULL;
}

static void on_signal(int signal)
{
	(void)signal;
	tms_prepare(bad[0], false);
	_exit(0); /* must not be reached: the fault landed where this handler keeps its state */
}

/* A fault on the stack on which a handler of the host's runs cannot be survived. */
static void fault_in_a_handler(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	EXPECT(sigaction(SIGUSR1, &action, NULL), 0);
	EXPECT(sigaltstack(&(stack_t){.ss_sp = malloc(256 << 10), .ss_size = 256 << 10}, NULL), 0);
	raise(SIGUSR1);
}

int main(int argc, char **argv)
{
	struct prop prop = {.type = 1, .location_type = 1};
	uint64_t handle = 0;
	EXPECT(cudaFree(NULL), 0); /* makes the context */
	tms_set_interesting_region(true);
	tms_set_current_tag("chunk");
	tms_set_enable_cpu_backup(true);
	EXPECT(((__typeof__(cuMemAddressReserve) *)simulator("cuMemAddressReserve"))(&address, 2 * MIB, 0, 0, 0), 0);
	EXPECT(cuMemCreate(&handle, 2 * MIB, &prop, 0), 0);
	EXPECT(cuMemMap(address, 2 * MIB, 0, handle, 0), 0);

	if (argc > 1) {
		(void)argv;
		fault(NULL);
		fault_in_a_handler();
	}
	for (intptr_t i = 0; i < 8; i++) {
		on_a_thread(fault, (void *)i);
	}
	fault(NULL);
	return 0;
}
