/* goruntime wakes the Go runtime in a host that does not know of it, and keeps it from harming the host: its start, its
 * threads and memory, the host's signals, and the messages for the host. It knows no segments or pauses, and of regions
 * only the errors in their settings. */
#ifndef TMS_GORUNTIME_H
#define TMS_GORUNTIME_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define OUT_OF_LINE static __attribute__((noinline))
#define HOT __attribute__((aligned(64))) /* its cost does not depend on where the linker puts it */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* cudaError_t numbers. */
enum {
	SUCCESS = 0,
	ERROR_INVALID_VALUE = 1,
	ERROR_MEMORY_ALLOCATION = 2,
	ERROR_FORKED = 3,
	ERROR_OPERATING_SYSTEM = 304,
	ERROR_ILLEGAL_STATE = 401,
	ERROR_NOT_SUPPORTED = 801,
};

/* enter.c: a thread's data until its end: the text of its last failure, and a stack for faults inside Go if the thread
 * has none of its own. */
enum { THREAD_TEXT_SIZE = 1024 };
struct thread {
	char text[THREAD_TEXT_SIZE], line[THREAD_TEXT_SIZE]; /* of its last line on stderr */
	stack_t faults;
	struct visit *visit; /* the innermost, or NULL outside Go */
	bool known_to_go;    /* Go has noted where its faults land */
};
extern __thread struct thread *thread_known __attribute__((tls_model("initial-exec"))) HIDDEN;
HIDDEN struct thread *thread_new(void); /* NULL if memory is short */
static inline struct thread *thread_mine(void)
{
	return likely(thread_known) ? thread_known : thread_new();
}

/* message.c: the calling thread's last failure. */
HIDDEN void error_set(const char *text);
HIDDEN int error_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
HIDDEN void error_prefix(const char *words); /* put before its text */
HIDDEN void error_log(const char *text); /* one line on stderr */
HIDDEN bool error_on_terminal(void); /* lines on stderr go to one */
HIDDEN void error_log_failure(const char *function, int code); /* the last failure, in a line; not for SUCCESS */

/* enter.c: as pthread_atfork; and whether the process has forked since a mark was set, by whatever call. */
HIDDEN void fork_notify(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
/* For a file with a lock, which its after_fork_in_child gives back in the child. */
#define FORK_WAITS_FOR(lock)                                                                       \
	static void before_fork(void)                                                              \
	{                                                                                          \
		pthread_mutex_lock(&lock);                                                         \
	}                                                                                          \
	static void after_fork_in_parent(void)                                                     \
	{                                                                                          \
		pthread_mutex_unlock(&lock);                                                       \
	}
struct fork_mark {
	_Atomic(volatile char *) page; /* of one byte, 1 until the kernel empties it in a child; or NULL */
	_Atomic pid_t process;	       /* 0 before it is set */
};
HIDDEN void fork_mark_set(struct fork_mark *mark);
HIDDEN bool fork_other_process(struct fork_mark *mark);

static inline bool fork_happened(struct fork_mark *mark)
{
	const volatile char *page = atomic_load_explicit(&mark->page, memory_order_acquire);
	return page ? !*page : fork_other_process(mark);
}

HIDDEN void descriptor_load(void); /* message.c: notes which file stderr is, at load */
extern const char *tms_last_error(void);

/* Where the library's file headers start and its code ends, from the linker. */
extern const char __ehdr_start[] HIDDEN;
extern const char etext[] HIDDEN;

/* enter.c: the Go runtime, asleep until first need. */
enum go_state { GO_ASLEEP, GO_STARTING, GO_AWAKE, GO_DEAD };
extern _Atomic int go_state HIDDEN; /* without regard to forks, for which there is go_now */
extern struct fork_mark go_process HIDDEN;

/* Go does not survive fork (its other threads are gone), and neither does CUDA. */
static inline int go_now(void)
{
	int state = atomic_load_explicit(&go_state, memory_order_acquire);
	return state != GO_ASLEEP && unlikely(fork_happened(&go_process)) ? GO_DEAD : state;
}
HIDDEN int go_start(void); /* a code; error_set on failure */

HIDDEN void go_load(void (*awake)(void)); /* enter.c: at load; awake is called when the runtime has started */

/* While a thread runs Go its signals are blocked: otherwise a host handler installed without SA_ONSTACK would run on a
 * goroutine's stack of a few KiB. Only faults come through. A visit keeps the thread's own settings, and restores them
 * at its end. */
struct visit {
	struct visit *outer; /* the visit around this one: Go calls the host's CUDA, which calls us */
	sigset_t mask;
	stack_t stack;	  /* the thread's own, restored at the end */
	bool has_faulted; /* or may: our stack is in its place */
	int cancellation; /* off in a visit: a cancelled thread would end in the middle of Go, or of its start */
};
HIDDEN int go_enter(struct visit *visit); /* a code; on success go_leave must follow */
HIDDEN void go_leave(struct visit *visit);

/* The result of a call into Go, or the code that prevented the call. */
#define IN_GO(call)                                                                                \
	({                                                                                         \
		struct visit saved_;                                                               \
		int entered_ = go_enter(&saved_);                                                  \
		if (entered_ == SUCCESS) {                                                         \
			entered_ = call;                                                           \
			go_leave(&saved_);                                                         \
		}                                                                                  \
		entered_;                                                                          \
	})

/* memory.c: the memory of the Go runtime, reserved before Go asks for it. */
HIDDEN bool memory_reserve(void); /* for its start; returns false, and reserves nothing, if there is no room */
HIDDEN void memory_release(void); /* before it has started */
HIDDEN size_t memory_at_start(void); /* bytes */
HIDDEN bool memory_spare(int mappings); /* reports whether there is room for these, and for 16 MiB of contents */
extern int memory_short HIDDEN; /* too little is left; room.go reads it too */
extern uint64_t memory_bound HIDDEN; /* the most bytes of the heap */
HIDDEN void *memory_map(void *hint, size_t size, int protection); /* the kernel's memory, not locked, or NULL */
HIDDEN void memory_extend(void); /* as far as the limits let us */

/* threads.c: the threads of the Go runtime, made before Go asks for them. */
enum {
	PROCESSORS_MAX = 16,	 /* that run Go at a time: no transfer is faster with more */
	THREADS_AT_START = 36,	 /* those, and what may wait in the background, or for the host */
	THREADS_PER_DEVICE = 13, /* a pause or resume waits on 8 for files and 4 for the rest; and pending frees */
	OPERATIONS_AT_START = 8, /* of the host's threads at once; more wait on two threads each */
	THREADS_OF_CONTROL = 5,	 /* the socket's and its requests': an operation, which waits on two, a status, memory */
};
HIDDEN bool threads_reserve(int devices, int operations); /* reports whether there now are threads for these */
HIDDEN bool threads_reserve_control(int more); /* and those for the control socket, and more; stays so */
HIDDEN void threads_release(void);	 /* ends them, while none works */
extern __thread bool threads_is_ours __attribute__((tls_model("initial-exec"))) HIDDEN; /* this one is */
HIDDEN void threads_run(void *(*run)(void *), void *argument);
HIDDEN int threads_processors(void); /* for Go, called on one of them */

/* handlers.c: signal dispositions once the Go runtime has started. */
extern _Atomic unsigned handlers_armed HIDDEN; /* a bit for each fault that this library handles */
enum { HANDLERS_BUS = 2, HANDLERS_ALL = 7 };
HIDDEN void handlers_arm(void);
HIDDEN void handlers_find(void); /* finds the next functions; call it before locks that exclude the loader's */
/* Notes SIGINT, SIGTERM and, if hangup, SIGHUP, which ask the program to end, before its handlers get them, each until
 * it has come. handlers_end_came returns a signal that has come since the last call, or 0. */
HIDDEN void handlers_watch_ends(bool hangup);
HIDDEN void handlers_leave_ends(void);
HIDDEN int handlers_end_came(void);
/* Takes a SIGBUS in memory that the library itself has mapped, in a handler, so that the instruction can go on. NULL
 * until it is set. */
typedef bool handlers_take(const void *address);
extern handlers_take *_Atomic handlers_taker HIDDEN;

#endif
