/* A caller does not return from tms_pause or tms_resume: it is cancelled, or a handler jumps out. The operation goes
 * on, no thread's stack is written, and contents stay. */
#include "host.h"

#include <setjmp.h>

enum { SEGMENTS = 6 };
#define SIZE (16 * MIB)
static void *segment[SEGMENTS];
static _Atomic int cycles;

static void cycle(void)
{
	PAUSE_AND_RESUME("vanish");
	atomic_fetch_add(&cycles, 1);
}

static void *cycle_for_ever(void *unused)
{
	for (;;)
		cycle();
	return unused;
}

/* Checks that the stack where the caller was is not written. */
static void __attribute__((noinline)) watch_stack(void)
{
	volatile char big[64 << 10];
	memset((void *)big, 0x5A, sizeof big);
	usleep(20000);
	for (size_t i = 0; i < sizeof big; i++)
		CHECK(big[i] == 0x5A);
}

static void *watch(void *unused)
{
	watch_stack();
	return unused;
}

static void in_thread(const pthread_attr_t *attributes, void *(*f)(void *), void *argument, bool cancel)
{
	pthread_t thread;
	int before = atomic_load(&cycles);
	EXPECT(pthread_create(&thread, attributes, f, argument), 0);
	if (cancel) {
		AWAIT(atomic_load(&cycles) != before);
		usleep(rand() % 5000);
		EXPECT(pthread_cancel(thread), 0);
	}
	join(thread);
}

static void cancelled(void)
{
	pthread_attr_t attributes;
	EXPECT(pthread_attr_init(&attributes), 0);
	EXPECT(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
	for (int i = 0; i < often(20, 4); i++) {
		in_thread(&attributes, cycle_for_ever, NULL, true);
		in_thread(&attributes, watch, NULL, false);
	}
}

static sigjmp_buf out;

static void on_alarm(int signal)
{
	siglongjmp(out, signal);
}

static void jumped(void)
{
	volatile int jumps = 0, wanted = often(40, 8);
	signal(SIGALRM, on_alarm);
	for (volatile int i = 0; i < wanted; i++) {
		if (sigsetjmp(out, 1) == 0) {
			ualarm(2000 + rand() % 8000, 0);
			for (;;)
				cycle();
		}
		jumps++;
		watch_stack();
	}
	EXPECT(jumps, wanted);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	for (int i = 0; i < SEGMENTS; i++) {
		segment[i] = kept_memory(SIZE, "vanish", i);
	}
	if (strcmp(argv[1], "cancelled") == 0)
		cancelled();
	else
		jumped();
	/* A pause whose caller no longer waits has no place in the order: it may come after the next call. */
	for (int i = 0; i < 100; i++) {
		EXPECT(tms_resume("vanish"), 0);
		usleep(10000);
	}
	for (int i = 0; i < SEGMENTS; i++) {
		CHECK(filled(segment[i], SIZE, i));
		EXPECT(cudaFree(segment[i]), 0);
	}
	return 0;
}
