// The thread's last error, names and texts.
#include "../driver/abi/errors.h"

#include "runtime.h"

static _Thread_local cudaError_t last;

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

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
	switch ((int)error) {
#define X(code, driver, runtime, text)                                                                       \
	case code: return #runtime;
		ERRORS(X)
#undef X
	case cudaErrorInvalidMemcpyDirection: return "cudaErrorInvalidMemcpyDirection";
	case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
	case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
	}
	return "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
	switch ((int)error) {
#define X(code, driver, runtime, text)                                                                       \
	case code: return text;
		ERRORS(X)
#undef X
	case cudaErrorInvalidMemcpyDirection: return "invalid copy direction for memcpy";
	case cudaErrorInsufficientDriver:
		return "CUDA driver version is insufficient for CUDA runtime version";
	case cudaErrorInvalidDeviceFunction: return "invalid device function";
	}
	return "unrecognized error code";
}
