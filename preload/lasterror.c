/* lasterror has the thread's last error, as cudaGetLastError tells it: CUDA's runtime notes its own failures, and this
 * file the failures of functions that were not passed on to it. */
#include "shim.h"

/* Later than CUDA's own last error. */
static __thread int last[FORWARD_MAJORS] __attribute__((tls_model("initial-exec")));

HIDDEN int runtime_result(int code)
{
	if (unlikely(code != SUCCESS)) {
		forward_cudaGetLastError(); /* an earlier error gives way, unless it is one that stays */
		last[forward_caller.major] = code;
	}
	return code;
}

/* CUDA's is there only if it came later, or stays. */
static int later(int cudas, int ours)
{
	return cudas != SUCCESS && cudas != FORWARD_MISSING ? cudas : ours;
}

/* Without libtms_reach.so this is the first that libtms.so hears of most calls, and a program asks for the last error
 * where it gives up. */
static int explained(int code)
{
	if (code == ERROR_INVALID_VALUE && gate_unusable())
		query_explain_refused("a CUDA call");
	return code;
}

/* Before that, an error of the caller's own copy of libcudart. Its other calls fail in the copy to which calls go, so
 * that copy's error is the next. */
static inline int of_copy(const void *caller, bool peek)
{
	const struct forward_copy *copy = forward_copy_of(caller);
	return likely(!copy) ? SUCCESS : peek ? copy->peek() : copy->get();
}

HOT EXPORT int cudaPeekAtLastError(void)
{
	int of_callers = of_copy(CALLER(), true);
	if (unlikely(of_callers != SUCCESS))
		return of_callers;
	int ours = last[forward_caller.major];
	if (likely(ours == SUCCESS && !copies_are_checked()))
		return forward_cudaPeekAtLastError();
	return ours == SUCCESS ? explained(forward_cudaPeekAtLastError()) : later(forward_cudaPeekAtLastError(), ours);
}

HOT EXPORT int cudaGetLastError(void)
{
	int of_callers = of_copy(CALLER(), false);
	if (unlikely(of_callers != SUCCESS))
		return of_callers;
	int ours = last[forward_caller.major];
	if (likely(ours == SUCCESS && !copies_are_checked()))
		return forward_cudaGetLastError();
	last[forward_caller.major] = SUCCESS;
	return ours == SUCCESS ? explained(forward_cudaGetLastError()) : later(forward_cudaGetLastError(), ours);
}
