// Every driver function the simulator exports: the plain name, the exported symbol,
// the CUDA version it came with (1000*major + 10*minor), and what it needs to be called.
// Drives call counting, fault injection and cuGetProcAddress.
//
// Where a plain name has several versions they stand oldest first.
#ifndef CUDASIM_FUNCTIONS_H
#define CUDASIM_FUNCTIONS_H

// ANY: works before cuInit. INIT: needs cuInit. CTX: needs a current context in good health.
#define DRIVER_FUNCTIONS(X)                                                                                  \
	X(cuInit, cuInit, 2000, ANY)                                                                         \
	X(cuDriverGetVersion, cuDriverGetVersion, 2020, ANY)                                                 \
	X(cuGetErrorName, cuGetErrorName, 6000, ANY)                                                         \
	X(cuGetErrorString, cuGetErrorString, 6000, ANY)                                                     \
	X(cuGetProcAddress, cuGetProcAddress, 11030, ANY)                                                    \
	X(cuGetProcAddress, cuGetProcAddress_v2, 12000, ANY)                                                 \
	X(cuCheckpointProcessGetState, cuCheckpointProcessGetState, 12080, ANY)                              \
	X(cuCheckpointProcessGetRestoreThreadId, cuCheckpointProcessGetRestoreThreadId, 12080, ANY)          \
	X(cuCheckpointProcessLock, cuCheckpointProcessLock, 12080, ANY)                                      \
	X(cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint, 12080, ANY)                          \
	X(cuCheckpointProcessRestore, cuCheckpointProcessRestore, 12080, ANY)                                \
	X(cuCheckpointProcessUnlock, cuCheckpointProcessUnlock, 12080, ANY)                                  \
	X(cuDeviceGet, cuDeviceGet, 2000, INIT)                                                              \
	X(cuDeviceGetCount, cuDeviceGetCount, 2000, INIT)                                                    \
	X(cuDeviceGetName, cuDeviceGetName, 2000, INIT)                                                      \
	X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, INIT)                                                      \
	X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, INIT)                                                  \
	X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, INIT)                                                 \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, INIT)                                            \
	X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, INIT)                                              \
	X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, INIT)                                          \
	X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, INIT)                                          \
	X(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, INIT)                                      \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, INIT)                                 \
	X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, INIT)                                               \
	X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, INIT)                                               \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, INIT)                                    \
	X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, INIT)                              \
	X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, INIT)                                  \
	X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 11000, INIT)                            \
	X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, INIT)                                \
	X(cuCtxCreate, cuCtxCreate_v2, 3020, INIT)                                                           \
	X(cuCtxCreate, cuCtxCreate_v4, 12050, INIT)                                                          \
	X(cuCtxDestroy, cuCtxDestroy_v2, 4000, INIT)                                                         \
	X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, INIT)                                                      \
	X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, INIT)                                                      \
	X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, INIT)                                                 \
	X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, INIT)                                                   \
	X(cuCtxGetDevice, cuCtxGetDevice, 2000, INIT)                                                        \
	X(cuCtxGetFlags, cuCtxGetFlags, 7000, INIT)                                                          \
	X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, CTX)                               \
	X(cuCtxSynchronize, cuCtxSynchronize, 2000, CTX)                                                     \
	X(cuCtxRecordEvent, cuCtxRecordEvent, 12050, INIT)                                                   \
	X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, CTX)                                           \
	X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, CTX)                                         \
	X(cuMemAddressReserve, cuMemAddressReserve, 10020, INIT)                                             \
	X(cuMemAddressFree, cuMemAddressFree, 10020, INIT)                                                   \
	X(cuMemCreate, cuMemCreate, 10020, INIT)                                                             \
	X(cuMemRelease, cuMemRelease, 10020, INIT)                                                           \
	X(cuMemMap, cuMemMap, 10020, INIT)                                                                   \
	X(cuMemUnmap, cuMemUnmap, 10020, INIT)                                                               \
	X(cuMemSetAccess, cuMemSetAccess, 10020, INIT)                                                       \
	X(cuMemGetAccess, cuMemGetAccess, 10020, INIT)                                                       \
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, INIT)                         \
	X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, INIT)       \
	X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, INIT)                             \
	X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, INIT)                           \
	X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, INIT)                       \
	X(cuMulticastCreate, cuMulticastCreate, 12010, INIT)                                                 \
	X(cuMulticastAddDevice, cuMulticastAddDevice, 12010, INIT)                                           \
	X(cuMulticastBindAddr, cuMulticastBindAddr, 12010, INIT)                                             \
	X(cuMulticastBindAddr, cuMulticastBindAddr_v2, 13010, INIT)                                          \
	X(cuMulticastBindMem, cuMulticastBindMem, 12010, INIT)                                               \
	X(cuMulticastBindMem, cuMulticastBindMem_v2, 13010, INIT)                                            \
	X(cuMulticastUnbind, cuMulticastUnbind, 12010, INIT)                                                 \
	X(cuMemAlloc, cuMemAlloc_v2, 3020, CTX)                                                              \
	X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020, CTX)                                                    \
	X(cuMemAllocManaged, cuMemAllocManaged, 6000, CTX)                                                   \
	X(cuMemFree, cuMemFree_v2, 3020, CTX)                                                                \
	X(cuMemGetInfo, cuMemGetInfo_v2, 3020, CTX)                                                          \
	X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, INIT)                                         \
	X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, INIT)                                          \
	X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, INIT)                                        \
	X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, CTX)                                                   \
	X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, CTX)                                             \
	X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, CTX)                                               \
	X(cuMemAllocAsync, cuMemAllocAsync, 11020, INIT)                                                     \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, INIT)                                     \
	X(cuMemFreeAsync, cuMemFreeAsync, 11020, INIT)                                                       \
	X(cuMemPoolCreate, cuMemPoolCreate, 11020, INIT)                                                     \
	X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, INIT)                                                   \
	X(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 11020, INIT)                   \
	X(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020, INIT)               \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, INIT)                                                     \
	X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, INIT)                                         \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, INIT)                                         \
	X(cuMemHostAlloc, cuMemHostAlloc, 2020, CTX)                                                         \
	X(cuMemAllocHost, cuMemAllocHost_v2, 3020, CTX)                                                      \
	X(cuMemFreeHost, cuMemFreeHost, 2000, CTX)                                                           \
	X(cuMemHostRegister, cuMemHostRegister_v2, 6050, CTX)                                                \
	X(cuMemHostUnregister, cuMemHostUnregister, 4000, CTX)                                               \
	X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, CTX)                                                   \
	X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, CTX)                                \
	X(cuMemcpy, cuMemcpy, 4000, CTX)                                                                     \
	X(cuMemcpyAsync, cuMemcpyAsync, 4000, INIT)                                                          \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, CTX)                                                          \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, CTX)                                                          \
	X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, CTX)                                                          \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, INIT)                                               \
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, INIT)                                               \
	X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, INIT)                                               \
	X(cuMemcpyPeer, cuMemcpyPeer, 4000, CTX)                                                             \
	X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, INIT)                                                  \
	X(cuMemcpy2D, cuMemcpy2D_v2, 3020, CTX)                                                              \
	X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020, INIT)                                                   \
	X(cuMemsetD8, cuMemsetD8_v2, 3020, CTX)                                                              \
	X(cuMemsetD16, cuMemsetD16_v2, 3020, CTX)                                                            \
	X(cuMemsetD32, cuMemsetD32_v2, 3020, CTX)                                                            \
	X(cuMemsetD2D8, cuMemsetD2D8_v2, 3020, CTX)                                                          \
	X(cuMemsetD8Async, cuMemsetD8Async, 3020, INIT)                                                      \
	X(cuMemsetD16Async, cuMemsetD16Async, 3020, INIT)                                                    \
	X(cuMemsetD32Async, cuMemsetD32Async, 3020, INIT)                                                    \
	X(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020, INIT)                                                  \
	X(cuStreamCreate, cuStreamCreate, 2000, CTX)                                                         \
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, CTX)                                 \
	X(cuStreamDestroy, cuStreamDestroy_v2, 4000, INIT)                                                   \
	X(cuStreamSynchronize, cuStreamSynchronize, 2000, INIT)                                              \
	X(cuStreamQuery, cuStreamQuery, 2000, INIT)                                                          \
	X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, INIT)                                                  \
	X(cuStreamGetCtx, cuStreamGetCtx, 9020, INIT)                                                        \
	X(cuStreamGetDevice, cuStreamGetDevice, 12080, INIT)                                                 \
	X(cuStreamGetFlags, cuStreamGetFlags, 5050, INIT)                                                    \
	X(cuStreamGetPriority, cuStreamGetPriority, 5050, INIT)                                              \
	X(cuStreamGetId, cuStreamGetId, 12000, INIT)                                                         \
	X(cuStreamAddCallback, cuStreamAddCallback, 5000, INIT)                                              \
	X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, INIT)                                                   \
	X(cuLibraryLoadData, cuLibraryLoadData, 12000, INIT)                                                 \
	X(cuLibraryUnload, cuLibraryUnload, 12000, INIT)                                                     \
	X(cuLibraryGetKernel, cuLibraryGetKernel, 12000, INIT)                                               \
	X(cuKernelGetFunction, cuKernelGetFunction, 12000, CTX)                                              \
	X(cuLaunchKernel, cuLaunchKernel, 4000, INIT)                                                        \
	X(cuLaunchKernelEx, cuLaunchKernelEx, 11060, INIT)                                                   \
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, INIT)                                        \
	X(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030, INIT)                             \
	X(cuStreamEndCapture, cuStreamEndCapture, 10000, INIT)                                               \
	X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, INIT)                                             \
	X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010, INIT)                                       \
	X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, INIT)                                    \
	X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030, INIT)                                    \
	X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, INIT)                 \
	X(cuEventCreate, cuEventCreate, 2000, CTX)                                                           \
	X(cuEventRecord, cuEventRecord, 2000, INIT)                                                          \
	X(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, INIT)                                       \
	X(cuEventQuery, cuEventQuery, 2000, INIT)                                                            \
	X(cuEventSynchronize, cuEventSynchronize, 2000, INIT)                                                \
	X(cuEventElapsedTime, cuEventElapsedTime, 2000, INIT)                                                \
	X(cuEventElapsedTime, cuEventElapsedTime_v2, 12080, INIT)                                            \
	X(cuEventDestroy, cuEventDestroy_v2, 4000, INIT)                                                     \
	X(cuGraphCreate, cuGraphCreate, 10000, INIT)                                                         \
	X(cuGraphGetNodes, cuGraphGetNodes, 10000, INIT)                                                     \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, INIT)                             \
	X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, INIT)                           \
	X(cuGraphUpload, cuGraphUpload, 11010, INIT)                                                         \
	X(cuGraphLaunch, cuGraphLaunch, 10000, INIT)                                                         \
	X(cuGraphDestroy, cuGraphDestroy, 10000, INIT)                                                       \
	X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, INIT)

// Plain names that a CUDA version maps to a function of another name.
#define FUNCTION_ALIASES(X) X(cuGraphInstantiate, cuGraphInstantiateWithFlags, 12000)

// Functions that also exist for the per-thread default stream: their symbol, the suffix.
#define PER_THREAD_FUNCTIONS(X)                                                                              \
	X(cuMemcpy, ptds)                                                                                    \
	X(cuMemcpyHtoD_v2, ptds)                                                                             \
	X(cuMemcpyDtoH_v2, ptds)                                                                             \
	X(cuMemcpyDtoD_v2, ptds)                                                                             \
	X(cuMemcpyPeer, ptds)                                                                                \
	X(cuMemsetD8_v2, ptds)                                                                               \
	X(cuMemsetD16_v2, ptds)                                                                              \
	X(cuMemsetD32_v2, ptds)                                                                              \
	X(cuMemcpyAsync, ptsz)                                                                               \
	X(cuMemcpyHtoDAsync_v2, ptsz)                                                                        \
	X(cuMemcpyDtoHAsync_v2, ptsz)                                                                        \
	X(cuMemcpyDtoDAsync_v2, ptsz)                                                                        \
	X(cuMemcpyPeerAsync, ptsz)                                                                           \
	X(cuMemsetD8Async, ptsz)                                                                             \
	X(cuMemsetD16Async, ptsz)                                                                            \
	X(cuMemsetD32Async, ptsz)                                                                            \
	X(cuMemAllocAsync, ptsz)                                                                             \
	X(cuMemAllocFromPoolAsync, ptsz)                                                                     \
	X(cuMemFreeAsync, ptsz)                                                                              \
	X(cuStreamSynchronize, ptsz)                                                                         \
	X(cuStreamQuery, ptsz)                                                                               \
	X(cuStreamWaitEvent, ptsz)                                                                           \
	X(cuStreamIsCapturing, ptsz)                                                                         \
	X(cuStreamBeginCapture_v2, ptsz)                                                                     \
	X(cuStreamBeginCaptureToGraph, ptsz)                                                                 \
	X(cuStreamEndCapture, ptsz)                                                                          \
	X(cuStreamGetCaptureInfo_v2, ptsz)                                                                   \
	X(cuStreamGetCaptureInfo_v3, ptsz)                                                                   \
	X(cuEventRecord, ptsz)                                                                               \
	X(cuLaunchHostFunc, ptsz)                                                                            \
	X(cuLaunchKernel, ptsz)                                                                              \
	X(cuLaunchKernelEx, ptsz)                                                                            \
	X(cuGraphLaunch, ptsz)

#endif
