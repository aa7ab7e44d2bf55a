// Error codes: number, driver name, runtime name, text. Both APIs share the numbers.
#ifndef CUDASIM_ERRORS_H
#define CUDASIM_ERRORS_H

#define ERRORS(X)                                                                                            \
	X(0, CUDA_SUCCESS, cudaSuccess, "no error")                                                          \
	X(1, CUDA_ERROR_INVALID_VALUE, cudaErrorInvalidValue, "invalid argument")                            \
	X(2, CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation, "out of memory")                           \
	X(3, CUDA_ERROR_NOT_INITIALIZED, cudaErrorInitializationError, "initialization error")               \
	X(100, CUDA_ERROR_NO_DEVICE, cudaErrorNoDevice, "no CUDA-capable device is detected")                \
	X(101, CUDA_ERROR_INVALID_DEVICE, cudaErrorInvalidDevice, "invalid device ordinal")                  \
	X(200, CUDA_ERROR_INVALID_IMAGE, cudaErrorInvalidKernelImage, "device kernel image is invalid")      \
	X(201, CUDA_ERROR_INVALID_CONTEXT, cudaErrorDeviceUninitialized, "invalid device context")           \
	X(217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cudaErrorPeerAccessUnsupported,                           \
	  "peer access is not supported between these two devices")                                          \
	X(304, CUDA_ERROR_OPERATING_SYSTEM, cudaErrorOperatingSystem,                                        \
	  "OS call failed or operation not supported on this OS")                                            \
	X(400, CUDA_ERROR_INVALID_HANDLE, cudaErrorInvalidResourceHandle, "invalid resource handle")         \
	X(401, CUDA_ERROR_ILLEGAL_STATE, cudaErrorIllegalState,                                              \
	  "the operation cannot be performed in the present state")                                          \
	X(500, CUDA_ERROR_NOT_FOUND, cudaErrorSymbolNotFound, "named symbol not found")                      \
	X(600, CUDA_ERROR_NOT_READY, cudaErrorNotReady, "device not ready")                                  \
	X(700, CUDA_ERROR_ILLEGAL_ADDRESS, cudaErrorIllegalAddress,                                          \
	  "an illegal memory access was encountered")                                                        \
	X(704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cudaErrorPeerAccessAlreadyEnabled,                    \
	  "peer access is already enabled")                                                                  \
	X(705, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cudaErrorPeerAccessNotEnabled,                            \
	  "peer access has not been enabled")                                                                \
	X(708, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, cudaErrorSetOnActiveProcess,                               \
	  "cannot set while device is active in this process")                                               \
	X(709, CUDA_ERROR_CONTEXT_IS_DESTROYED, cudaErrorContextIsDestroyed, "context is destroyed")         \
	X(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cudaErrorHostMemoryAlreadyRegistered,              \
	  "part or all of the requested memory range is already mapped")                                     \
	X(713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cudaErrorHostMemoryNotRegistered,                      \
	  "pointer does not correspond to a registered memory region")                                       \
	X(716, CUDA_ERROR_MISALIGNED_ADDRESS, cudaErrorMisalignedAddress, "misaligned address")              \
	X(719, CUDA_ERROR_LAUNCH_FAILED, cudaErrorLaunchFailure, "unspecified launch failure")               \
	X(800, CUDA_ERROR_NOT_PERMITTED, cudaErrorNotPermitted, "operation not permitted")                   \
	X(801, CUDA_ERROR_NOT_SUPPORTED, cudaErrorNotSupported, "operation not supported")                   \
	X(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cudaErrorStreamCaptureUnsupported,                     \
	  "operation not permitted when stream is capturing")                                                \
	X(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cudaErrorStreamCaptureInvalidated,                     \
	  "operation failed due to a previous error during capture")                                         \
	X(902, CUDA_ERROR_STREAM_CAPTURE_MERGE, cudaErrorStreamCaptureMerge,                                 \
	  "operation would result in a merge of separate capture sequences")                                 \
	X(903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cudaErrorStreamCaptureUnmatched,                         \
	  "capture was not ended in the same stream as it began")                                            \
	X(904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cudaErrorStreamCaptureUnjoined,                           \
	  "capturing stream has unjoined work")                                                              \
	X(905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cudaErrorStreamCaptureIsolation,                         \
	  "dependency created on uncaptured work in another stream")                                         \
	X(906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cudaErrorStreamCaptureImplicit,                           \
	  "operation would make the legacy stream depend on a capturing blocking stream")                    \
	X(907, CUDA_ERROR_CAPTURED_EVENT, cudaErrorCapturedEvent,                                            \
	  "operation not permitted on an event last recorded in a capturing stream")                         \
	X(908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cudaErrorStreamCaptureWrongThread,                    \
	  "attempt to terminate a thread-local capture sequence from another thread")                        \
	X(999, CUDA_ERROR_UNKNOWN, cudaErrorUnknown, "unknown error")

#endif
