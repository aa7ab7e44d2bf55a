// What the files of the simulated CUDA runtime share: the driver found at first use, the
// calling thread's context, the last error.
#ifndef CUDASIM_RUNTIME_H
#define CUDASIM_RUNTIME_H

#include "../driver/abi/api.h"
#include "types.h"

#define DRIVER_CALLS(X)                                                                                                                                                \
	X(cuInit)                                                                                                                                                      \
	X(cuDriverGetVersion)                                                                                                                                          \
	X(cuGetProcAddress_v2) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetUuid_v2) X(cuDeviceTotalMem_v2) X(cuDeviceGetAttribute) X(                          \
		cuDeviceGetPCIBusId) X(cuDeviceCanAccessPeer) X(cuDeviceGetP2PAttribute) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool) X(cuDeviceSetMemPool)                                 \
		X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxSetFlags_v2) X(cuDevicePrimaryCtxGetState) X(                            \
			cuCtxSetCurrent) X(cuCtxGetDevice) X(cuCtxGetStreamPriorityRange) X(cuCtxSynchronize) X(cuCtxEnablePeerAccess)                                 \
			X(cuCtxDisablePeerAccess) X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemFree_v2) X(cuMemGetInfo_v2) X(                                         \
				cuPointerGetAttributes) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle) X(cuMemAllocManaged) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync)                           \
				X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolTrimTo) X(cuMemPoolExportToShareableHandle) X(cuMemPoolImportFromShareableHandle) X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute) X(cuMemHostAlloc) X(                                              \
					cuMemFreeHost) X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemHostGetFlags) X(cuMemHostGetDevicePointer_v2)             \
					X(cuMemcpy) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoD_v2) X(                                                        \
						cuMemcpyAsync) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2)                                 \
						X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemcpy2D_v2) X(cuMemcpy2DAsync_v2) X(                                         \
							cuMemsetD8_v2) X(cuMemsetD8Async) X(cuMemsetD2D8_v2) X(cuMemsetD2D8Async)                                      \
							X(cuStreamCreateWithPriority) X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(                                  \
								cuStreamQuery) X(cuStreamWaitEvent) X(cuStreamGetDevice)                                               \
								X(cuStreamGetFlags) X(cuStreamGetPriority) X(cuStreamGetId) X(                                         \
									cuStreamAddCallback) X(cuLaunchHostFunc) X(cuStreamBeginCapture_v2)                            \
									X(cuStreamBeginCaptureToGraph) X(cuStreamEndCapture) X(                                        \
										cuStreamIsCapturing) X(cuStreamGetCaptureInfo_v3) X(cuThreadExchangeStreamCaptureMode) \
										X(cuEventCreate) X(cuEventRecordWithFlags) X(                                          \
											cuEventQuery) X(cuEventSynchronize)                                            \
											X(cuEventElapsedTime_v2) X(cuEventDestroy_v2) X(                               \
												cuGraphCreate) X(cuGraphGetNodes)                                      \
												X(cuGraphInstantiateWithFlags) X(                                      \
													cuGraphInstantiateWithParams)                                  \
													X(cuGraphUpload) X(                                            \
														cuGraphLaunch)                                         \
														X(cuGraphDestroy)                                      \
															X(cuGraphExecDestroy)

struct driver {
#define X(symbol) __typeof__(&symbol) symbol;
	DRIVER_CALLS(X)
#undef X
};

// The driver's functions; valid once driver_load or ready has returned cudaSuccess.
extern struct driver cu;
cudaError_t driver_load(void);	// finds libcuda.so.1
cudaError_t driver_start(void); // and initialises it
cudaError_t ready(void);	// and makes the device's primary context current if the thread has none

int device_chosen(void);
cudaError_t device_bind(int device); // its primary context becomes current
cudaError_t device_primary(int device, CUcontext *context);
void device_forget(int device);

// Remembers an error as the thread's last one, and returns it.
cudaError_t result(int code);

// After these the driver can be called.
#define LOADED()                                                                                             \
	do {                                                                                                 \
		cudaError_t loaded_ = driver_load();                                                         \
		if (loaded_ != cudaSuccess)                                                                  \
			return result(loaded_);                                                              \
	} while (0)
#define STARTED()                                                                                            \
	do {                                                                                                 \
		cudaError_t started_ = driver_start();                                                       \
		if (started_ != cudaSuccess)                                                                 \
			return result(started_);                                                             \
	} while (0)
#define READY()                                                                                              \
	do {                                                                                                 \
		cudaError_t ready_ = ready();                                                                \
		if (ready_ != cudaSuccess)                                                                   \
			return result(ready_);                                                               \
	} while (0)

// The stream that a _ptsz function means.
static inline cudaStream_t mine(cudaStream_t stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

#endif
