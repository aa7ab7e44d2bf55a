/* gate brings the threads of a program to a safepoint: a point between two CUDA calls. It knows which threads are
 * inside a call that gives the device work, and keeps other threads from entering one.
 *
 * A thread that wants to enter writes its mark, then reads the state. The pauser writes the state, then reads the
 * marks. At least one side sees the other if both have a full barrier between their two steps. The thread has none,
 * because a barrier would cost more than all the rest. Instead the pauser calls membarrier, which puts a barrier into
 * every running thread of the process (a thread that does not run passes a barrier when it runs again). The barrier
 * comes before the thread reads the state, and then the thread reads "closed", takes its mark back and sleeps; or it
 * comes after that, and then the pauser sees the mark. So when the pauser has seen every mark OUT after the barrier,
 * each at a moment of its own, no thread is inside. None enters until the gate opens.
 *
 * A signal handler may give the device work in the middle of this. If it finds INSIDE it passes: its thread was let in,
 * and the pauser waits for it. If it finds TRYING it does not know the outcome. It passes the gate as the thread would
 * and leaves TRYING behind, as it found it; a pauser that has seen TRYING looks again. One word says what a thread is
 * inside of, so a handler between two stores changes nothing.
 *
 * Calls that poll have a word of their own. They are no work: an ordinary pause neither waits for them nor stops them,
 * and the mark keeps what it says of the thread's last work. The same barrier is between that word and the state.
 *
 * Marks are never unmapped. A new thread takes the mark of a dead thread; until then the mark names the last stream,
 * for the text of a pause that is refused. A thread that ends inside a call (by cancellation) gives its mark back
 * through its key. If the thread ended too late for a key, the pauser asks the kernel whether the thread lives. */
#define _GNU_SOURCE
#include "reach.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

HIDDEN __thread struct gate_mark *gate_mine __attribute__((tls_model("initial-exec")));
HIDDEN _Atomic uint32_t gate_state;

enum { MARKS = 63 }; /* they fill a page with the pointer */
struct marks {
	_Alignas(64) _Atomic(struct marks *) next;
	struct gate_mark mark[MARKS];
};
static struct marks first;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

/* The thread ends. A later destructor may still give the device work; it then takes another mark. */
static void leave_for_good(void *mark)
{
	struct gate_mark *mine = mark;
	gate_mine = NULL;
	atomic_store_explicit(&mine->inside, OUT, memory_order_release);
	atomic_store_explicit(&mine->polling, NULL, memory_order_release);
	atomic_store_explicit(&mine->taken, false, memory_order_release);
}

static void make_key(void)
{
	has_key = pthread_key_create(&key, leave_for_good) == 0;
}

static struct gate_mark *take(void)
{
	for (struct marks *marks = &first;;) {
		for (int i = 0; i < MARKS; i++) {
			bool taken = false;
			if (!atomic_load_explicit(&marks->mark[i].taken, memory_order_relaxed) &&
			    atomic_compare_exchange_strong(&marks->mark[i].taken, &taken, true))
				return &marks->mark[i];
		}
		struct marks *next = atomic_load(&marks->next);
		if (!next) {
			struct marks *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE,
						   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (fresh == MAP_FAILED)
				return NULL;
			if (atomic_compare_exchange_strong(&marks->next, &next, fresh))
				next = fresh;
			else
				munmap(fresh, sizeof *fresh);
		}
		marks = next;
	}
}

/* A signal handler may do the same in the middle: one of the two marks is then never used again. */
static struct gate_mark *mine_new(void)
{
	pthread_once(&once, make_key);
	struct gate_mark *mine = take();
	if (!mine)
		return NULL;
	atomic_store_explicit(&mine->thread, (uint32_t)syscall(SYS_gettid), memory_order_relaxed);
	if (has_key)
		pthread_setspecific(key, mine);
	gate_mine = mine;
	return mine;
}

/* For the process that closed the gate: a byte that its children read as 0, or NULL; and its number. */
static const volatile char *_Atomic alive;
static _Atomic pid_t process;

static bool is_child(void)
{
	const volatile char *byte = atomic_load(&alive);
	return byte ? !*byte : (pid_t)syscall(SYS_getpid) != atomic_load(&process);
}

static _Atomic uint64_t order;
static __thread uint64_t let_in_to __attribute__((tls_model("initial-exec")));

HIDDEN void gate_order(uint64_t number)
{
	atomic_store(&order, number);
}

HIDDEN void gate_let_in(uint64_t number)
{
	let_in_to = number;
}

/* Reports whether a call passes in the order that is in progress. A graph may use any memory, and nothing looks at
 * where cuFileRead and its kin write. A name that is not the driver's stands for a wait until the gate is open. */
static bool is_let_in(const struct gate_call *call)
{
	return call->kind == WORK && let_in_to && let_in_to == atomic_load_explicit(&order, memory_order_relaxed) &&
	       strncmp(call->name, "cu", 2) == 0 && strncmp(call->name, "cuGraph", 7) != 0 &&
	       strncmp(call->name, "cuFile", 6) != 0;
}

static bool is_open(uint32_t state, const struct gate_call *call, enum gate_kind kind)
{
	static const bool passes[][POLL + 1] = {
		[GATE_OPEN] = {[WORK] = true, [CAPTURE] = true, [POLL] = true},
		[GATE_NO_CAPTURES] = {[WORK] = true, [POLL] = true},
		[GATE_ORDERED] = {[POLL] = true},
		[GATE_CLOSED] = {[POLL] = true},
		[GATE_CHECKPOINT] = {false},
	};
	return passes[state][kind] || (state == GATE_ORDERED && is_let_in(call)) || is_child();
}

static _Atomic uint32_t changes; /* of the state, of refuses, and of the stop of NCCL */
static _Atomic bool refuses;	 /* calls that would wait fail instead */

HIDDEN uint32_t gate_change(void)
{
	return atomic_load_explicit(&changes, memory_order_acquire);
}

/* A bare system call, because a cancelled thread must not end here, in the middle of a call of the program's. */
HIDDEN void gate_wait_for_change(uint32_t seen)
{
	int error = errno;
	syscall(SYS_futex, &changes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	errno = error;
}

HIDDEN void gate_changed(void)
{
	atomic_fetch_add(&changes, 1);
	syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

HIDDEN bool gate_refuses(void)
{
	return atomic_load_explicit(&refuses, memory_order_relaxed) && !is_child();
}

HIDDEN void gate_refuse(bool on)
{
	atomic_store(&refuses, on);
	gate_changed();
}

static _Atomic bool saw_capture; /* all captures come by gate_enter */

HIDDEN bool gate_saw_capture(void)
{
	return atomic_load_explicit(&saw_capture, memory_order_relaxed);
}

HIDDEN struct gate_mark *gate_enter(const struct gate_call *call, uintptr_t stream)
{
	if (call->kind == CAPTURE)
		atomic_store_explicit(&saw_capture, true, memory_order_relaxed);
	struct gate_mark *mine = gate_mine ? gate_mine : mine_new();
	if (!mine)
		return NO_MARK;
	/* Not OUT: this is a handler, or a call below another. */
	uint32_t was = atomic_load_explicit(&mine->inside, memory_order_relaxed);
	if (was == INSIDE)
		return NULL;
	for (;;) {
		uint32_t seen = gate_change();
		atomic_store_explicit(&mine->call, call, memory_order_relaxed);
		atomic_store_explicit(&mine->stream, stream, memory_order_relaxed);
		atomic_store_explicit(&mine->inside, TRYING, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		uint32_t state = atomic_load_explicit(&gate_state, memory_order_relaxed);
		if (is_open(state, call, call->kind))
			break;
		atomic_store_explicit(&mine->inside, OUT, memory_order_release);
		if (was == OUT && gate_refuses())
			return REFUSED;
		/* A handler is never refused above a thread that wrote TRYING: that thread may have read "open", and would
		 * go on while the gate is closed. */
		gate_wait_for_change(seen);
	}
	if (was != OUT)
		return NULL; /* a handler: TRYING stays, as the thread that it interrupted wrote it */
	atomic_store_explicit(&mine->inside, INSIDE, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	return mine;
}

/* A signal handler that waits here keeps its thread from the poll that it has interrupted, so the driver's checkpoint
 * need not wait for that poll. A poll inside another call is part of that call. */
HIDDEN struct gate_poll gate_enter_poll(const struct gate_call *call)
{
	struct gate_poll poll = {gate_mine ? gate_mine : mine_new(), NULL};
	if (!poll.mark)
		return poll;
	poll.outer = atomic_load_explicit(&poll.mark->polling, memory_order_relaxed);
	for (;;) {
		uint32_t seen = gate_change();
		atomic_store_explicit(&poll.mark->polling, call, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		uint32_t state = atomic_load_explicit(&gate_state, memory_order_relaxed);
		if (is_open(state, call, POLL) || atomic_load_explicit(&poll.mark->inside, memory_order_relaxed) == INSIDE)
			return poll;
		atomic_store_explicit(&poll.mark->polling, NULL, memory_order_release);
		if (!poll.outer && gate_refuses()) /* else the outer poll may go on while the gate is closed */
			return (struct gate_poll){REFUSED, NULL};
		gate_wait_for_change(seen);
	}
}

/* For a thread of this library, which is let in while the gate is closed to all other threads. */
HIDDEN struct gate_mark *gate_pass(const struct gate_call *call)
{
	struct gate_mark *mine = gate_mine ? gate_mine : mine_new();
	if (mine) {
		atomic_store_explicit(&mine->stream, 0, memory_order_relaxed);
		atomic_store_explicit(&mine->call, call, memory_order_relaxed);
		atomic_store_explicit(&mine->inside, INSIDE, memory_order_release);
	}
	return mine;
}

static int set(enum gate_state state, const volatile char *byte)
{
	static _Atomic bool registered;
	atomic_store(&alive, byte);
	atomic_store(&process, (pid_t)syscall(SYS_getpid));
	if (state > atomic_load(&gate_state) && !atomic_load(&registered)) {
		if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) != 0)
			return errno;
		atomic_store(&registered, true);
	}
	bool stricter = state > atomic_exchange(&gate_state, state);
	if (state == GATE_OPEN)
		atomic_store(&refuses, false);
	if (!stricter || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0) == 0) {
		gate_changed();
		return 0;
	}
	int error = errno;
	set(GATE_OPEN, byte);
	return error;
}

static struct gate_mark *next(const struct gate_mark *mark)
{
	if (!mark)
		return first.mark;
	for (struct marks *marks = &first; marks; marks = atomic_load(&marks->next))
		if (mark >= marks->mark && mark < marks->mark + MARKS - 1)
			return &marks->mark[mark - marks->mark + 1];
		else if (mark == marks->mark + MARKS - 1)
			return (marks = atomic_load(&marks->next)) ? marks->mark : NULL;
	return NULL;
}

/* The kernel counts sleepers, without dead ones. The woken sleeper looks at the state and sleeps again. */
HIDDEN bool gate_is_waited_for(void)
{
	return syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) > 0;
}

/* Without a mark, or at a gate that refuses, the call itself, below, fails. */
static struct gate_mark *enter(const struct gate_call *call, uintptr_t stream)
{
	struct gate_mark *mark = gate_enter(call, stream);
	return mark == NO_MARK || mark == REFUSED ? NULL : mark;
}

EXPORT const struct gate tms_reach_gate = {
	.unusable = reach_misplaced,
	.set = set,
	.next = next,
	.enter = enter,
	.leave = gate_leave,
	.nccl = &nccl_gate,
#define X(returns, name, parameters, arguments) .name = gate_##name,
	GATE_ASKED(X)
#undef X
};
