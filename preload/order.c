/* order lets threads go on step by step while a resume with an order brings memory back (order.go). It keeps what they
 * have to know where a forked child, and a thread that may not enter Go, can read it. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* There is one order at a time. A thread that reads its own number, and then the step of a later order, was right to
 * wait no longer: its order was over by then. */
static _Atomic uint64_t current; /* the order that is in progress, or has failed; or 0 */
static _Atomic int back;	 /* its last step that is back */
static _Atomic bool failed;
static _Atomic uint32_t changes;

static void changed(void)
{
	atomic_fetch_add(&changes, 1);
	syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

HIDDEN void order_begin(uint64_t number, int step)
{
	atomic_store(&failed, false);
	atomic_store(&back, step);
	atomic_store(&current, number);
	gate_order(number);
	changed();
}

HIDDEN void order_goes_on(int step)
{
	atomic_store(&back, step);
	changed();
}

HIDDEN void order_fail(void)
{
	atomic_store(&failed, true);
	changed();
}

HIDDEN void order_end(void)
{
	if (atomic_exchange(&current, 0))
		changed();
}

/* The order that this thread was let in to, and how many times. */
static __thread struct {
	uint64_t order;
	unsigned times;
} mine __attribute__((tls_model("initial-exec")));

EXPORT bool tms_order_is_over(uint64_t number)
{
	/* In a child no thread brings memory back. */
	return number == 0 || atomic_load(&current) != number || go_now() == GO_DEAD;
}

EXPORT int tms_order_enter(uint64_t number, int step)
{
	for (;;) {
		uint32_t seen = atomic_load(&changes);
		if (tms_order_is_over(number))
			return SUCCESS;
		if (atomic_load(&failed))
			return IN_GO(tmsOrderFailed());
		if (atomic_load(&back) >= step)
			break;
		syscall(SYS_futex, &changes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	}
	if (mine.order != number)
		mine.order = number, mine.times = 0;
	mine.times++;
	gate_let_in(number);
	return SUCCESS;
}

EXPORT void tms_order_leave(uint64_t number)
{
	if (mine.order == number && mine.times > 0 && --mine.times == 0)
		gate_let_in(0);
}
