// The thread's last error, names and texts.
#include <stdbool.h>

#include "runtime.h"

static _Thread_local cudaError_t last __attribute__((tls_model("initial-exec")));

cudaError_t result(int code)
{
	if (code != cudaSuccess && code != cudaErrorNotReady)
		last = (cudaError_t)code;
	return (cudaError_t)code;
}

EXPORT cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last;
	last = cudaSuccess;
	return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
	return last;
}

static const char *look_up(cudaError_t error, bool words)
{
	switch (error) {
#define X(code, driver, runtime, text) \
	case code: return words ? text : #runtime;
		ERRORS(X) RUNTIME_ERRORS(X)
#undef X
	}
	return "unrecognized error code";
}

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
	return look_up(error, false);
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
	return look_up(error, true);
}
