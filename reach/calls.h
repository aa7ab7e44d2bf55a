/* calls lists the functions of the driver that the gate stands in front of, of CUDA 12 and 13 (cuda.h of 12.9 and
 * 13.5), old versions of them included:
 *
 *   X(symbol, how many arguments, which of them is the stream, kind, the first CUDA version that has it)
 *
 * WORK      gives the device work that reads or writes memory, or that runs the program's own functions later.
 * CAPTURE   begins to capture a stream.
 * DESTROY   ends streams: a handle that a mark names must not be asked for after it.
 * LEND      gives memory to others, who use it whenever they like, or has to do with its handle. It passes always, and is
 *           written down.
 * POLL      does not wait for the driver's lock, and reads pages that the driver's checkpoint has taken away, or is
 *           refused meanwhile (304). Seen with driver 580: docs/what-stays.md. Only the checkpoint holds it.
 *
 * Each argument is an integer, a pointer or a struct of 8 bytes, so a word. Left out, for they put no work on memory
 * of the program's: what the device records and waits for (cuEventRecord, cuStreamWaitEvent), what makes and frees
 * memory at once (cuMemAlloc, cuMemFree, cuArrayCreate), what loads code (cuModuleLoadData), hints (cuMemAdvise), what
 * changes graphs that are not running, and cudaGL.h, cudaEGL.h, cudaVDPAU.h, whose memory is not the program's to
 * pause. */
#ifndef REACH_CALLS_H
#define REACH_CALLS_H

#define GATED_CALLS(X) \
	X(cuFabricCpyBatchAsync, 4, 3, WORK, 13050)                                                        \
	X(cuFabricCpyBatchAsync_ptsz, 4, 3, WORK, 13050)                                                   \
	X(cuGraphInstantiateWithParams, 3, NONE, WORK, 12000)                                              \
	X(cuGraphInstantiateWithParams_ptsz, 3, NONE, WORK, 12000)                                         \
	X(cuGraphLaunch, 2, 1, WORK, 10000)                                                                \
	X(cuGraphLaunch_ptsz, 2, 1, WORK, 10000)                                                           \
	X(cuGraphUpload, 2, 1, WORK, 11010)                                                                \
	X(cuGraphUpload_ptsz, 2, 1, WORK, 11010)                                                           \
	X(cuGraphicsMapResources, 3, 2, WORK, 3000)                                                        \
	X(cuGraphicsMapResources_ptsz, 3, 2, WORK, 7000)                                                   \
	X(cuGraphicsUnmapResources, 3, 2, WORK, 3000)                                                      \
	X(cuGraphicsUnmapResources_ptsz, 3, 2, WORK, 7000)                                                 \
	X(cuLaunch, 1, NONE, WORK, 2000)                                                                   \
	X(cuLaunchCooperativeKernel, 10, 8, WORK, 9000)                                                    \
	X(cuLaunchCooperativeKernelMultiDevice, 3, NONE, WORK, 9000)                                       \
	X(cuLaunchCooperativeKernel_ptsz, 10, 8, WORK, 9000)                                               \
	X(cuLaunchGrid, 3, NONE, WORK, 2000)                                                               \
	X(cuLaunchGridAsync, 4, 3, WORK, 2000)                                                             \
	X(cuLaunchHostFunc, 3, 0, WORK, 10000)                                                             \
	X(cuLaunchHostFunc_ptsz, 3, 0, WORK, 10000)                                                        \
	X(cuLaunchHostFunc_v2, 4, 0, WORK, 13010)                                                          \
	X(cuLaunchHostFunc_v2_ptsz, 4, 0, WORK, 13010)                                                     \
	X(cuLaunchKernel, 11, 8, WORK, 4000)                                                               \
	X(cuLaunchKernelEx, 4, NONE, WORK, 11060)                                                          \
	X(cuLaunchKernelEx_ptsz, 4, NONE, WORK, 11060)                                                     \
	X(cuLaunchKernel_ptsz, 11, 8, WORK, 7000)                                                          \
	X(cuMemAllocAsync, 3, 2, WORK, 11020)                                                              \
	X(cuMemAllocAsync_ptsz, 3, 2, WORK, 11020)                                                         \
	X(cuMemAllocFromPoolAsync, 4, 3, WORK, 11020)                                                      \
	X(cuMemAllocFromPoolAsync_ptsz, 4, 3, WORK, 11020)                                                 \
	X(cuMemBatchDecompressAsync, 5, 4, WORK, 12060)                                                    \
	X(cuMemBatchDecompressAsync_ptsz, 5, 4, WORK, 12060)                                               \
	X(cuMemDiscardAndPrefetchBatchAsync, 8, 7, WORK, 13000)                                            \
	X(cuMemDiscardAndPrefetchBatchAsync_ptsz, 8, 7, WORK, 13000)                                       \
	X(cuMemDiscardBatchAsync, 5, 4, WORK, 13000)                                                       \
	X(cuMemDiscardBatchAsync_ptsz, 5, 4, WORK, 13000)                                                  \
	X(cuMemFreeAsync, 2, 1, WORK, 11020)                                                               \
	X(cuMemFreeAsync_ptsz, 2, 1, WORK, 11020)                                                          \
	X(cuMemMapArrayAsync, 3, 2, WORK, 11010)                                                           \
	X(cuMemMapArrayAsync_ptsz, 3, 2, WORK, 11010)                                                      \
	X(cuMemPrefetchAsync, 4, 3, WORK, 8000)                                                            \
	X(cuMemPrefetchAsync_ptsz, 4, 3, WORK, 8000)                                                       \
	X(cuMemPrefetchAsync_v2, 5, 4, WORK, 12020)                                                        \
	X(cuMemPrefetchAsync_v2_ptsz, 5, 4, WORK, 12020)                                                   \
	X(cuMemPrefetchBatchAsync, 8, 7, WORK, 13000)                                                      \
	X(cuMemPrefetchBatchAsync_ptsz, 8, 7, WORK, 13000)                                                 \
	X(cuMemcpy, 3, NONE, WORK, 4000)                                                                   \
	X(cuMemcpy2D, 1, NONE, WORK, 2000)                                                                 \
	X(cuMemcpy2DAsync, 2, 1, WORK, 2000)                                                               \
	X(cuMemcpy2DAsync_v2, 2, 1, WORK, 3020)                                                            \
	X(cuMemcpy2DAsync_v2_ptsz, 2, 1, WORK, 7000)                                                       \
	X(cuMemcpy2DUnaligned, 1, NONE, WORK, 2000)                                                        \
	X(cuMemcpy2DUnaligned_v2, 1, NONE, WORK, 3020)                                                     \
	X(cuMemcpy2DUnaligned_v2_ptds, 1, NONE, WORK, 7000)                                                \
	X(cuMemcpy2D_v2, 1, NONE, WORK, 3020)                                                              \
	X(cuMemcpy2D_v2_ptds, 1, NONE, WORK, 7000)                                                         \
	X(cuMemcpy3D, 1, NONE, WORK, 2000)                                                                 \
	X(cuMemcpy3DAsync, 2, 1, WORK, 2000)                                                               \
	X(cuMemcpy3DAsync_v2, 2, 1, WORK, 3020)                                                            \
	X(cuMemcpy3DAsync_v2_ptsz, 2, 1, WORK, 7000)                                                       \
	X(cuMemcpy3DBatchAsync, 5, 4, WORK, 12080)                                                         \
	X(cuMemcpy3DBatchAsync_ptsz, 5, 4, WORK, 12080)                                                    \
	X(cuMemcpy3DBatchAsync_v2, 4, 3, WORK, 13000)                                                      \
	X(cuMemcpy3DBatchAsync_v2_ptsz, 4, 3, WORK, 13000)                                                 \
	X(cuMemcpy3DPeer, 1, NONE, WORK, 4000)                                                             \
	X(cuMemcpy3DPeerAsync, 2, 1, WORK, 4000)                                                           \
	X(cuMemcpy3DPeerAsync_ptsz, 2, 1, WORK, 7000)                                                      \
	X(cuMemcpy3DPeer_ptds, 1, NONE, WORK, 7000)                                                        \
	X(cuMemcpy3DWithAttributesAsync, 3, 2, WORK, 13020)                                                \
	X(cuMemcpy3DWithAttributesAsync_ptsz, 3, 2, WORK, 13020)                                           \
	X(cuMemcpy3D_v2, 1, NONE, WORK, 3020)                                                              \
	X(cuMemcpy3D_v2_ptds, 1, NONE, WORK, 7000)                                                         \
	X(cuMemcpyAsync, 4, 3, WORK, 4000)                                                                 \
	X(cuMemcpyAsync_ptsz, 4, 3, WORK, 7000)                                                            \
	X(cuMemcpyAtoA, 5, NONE, WORK, 2000)                                                               \
	X(cuMemcpyAtoA_v2, 5, NONE, WORK, 3020)                                                            \
	X(cuMemcpyAtoA_v2_ptds, 5, NONE, WORK, 7000)                                                       \
	X(cuMemcpyAtoD, 4, NONE, WORK, 2000)                                                               \
	X(cuMemcpyAtoD_v2, 4, NONE, WORK, 3020)                                                            \
	X(cuMemcpyAtoD_v2_ptds, 4, NONE, WORK, 7000)                                                       \
	X(cuMemcpyAtoH, 4, NONE, WORK, 2000)                                                               \
	X(cuMemcpyAtoHAsync, 5, 4, WORK, 2000)                                                             \
	X(cuMemcpyAtoHAsync_v2, 5, 4, WORK, 3020)                                                          \
	X(cuMemcpyAtoHAsync_v2_ptsz, 5, 4, WORK, 7000)                                                     \
	X(cuMemcpyAtoH_v2, 4, NONE, WORK, 3020)                                                            \
	X(cuMemcpyAtoH_v2_ptds, 4, NONE, WORK, 7000)                                                       \
	X(cuMemcpyBatchAsync, 9, 8, WORK, 12080)                                                           \
	X(cuMemcpyBatchAsync_ptsz, 9, 8, WORK, 12080)                                                      \
	X(cuMemcpyBatchAsync_v2, 8, 7, WORK, 13000)                                                        \
	X(cuMemcpyBatchAsync_v2_ptsz, 8, 7, WORK, 13000)                                                   \
	X(cuMemcpyDtoA, 4, NONE, WORK, 2000)                                                               \
	X(cuMemcpyDtoA_v2, 4, NONE, WORK, 3020)                                                            \
	X(cuMemcpyDtoA_v2_ptds, 4, NONE, WORK, 7000)                                                       \
	X(cuMemcpyDtoD, 3, NONE, WORK, 2000)                                                               \
	X(cuMemcpyDtoDAsync, 4, 3, WORK, 3000)                                                             \
	X(cuMemcpyDtoDAsync_v2, 4, 3, WORK, 3020)                                                          \
	X(cuMemcpyDtoDAsync_v2_ptsz, 4, 3, WORK, 7000)                                                     \
	X(cuMemcpyDtoD_v2, 3, NONE, WORK, 3020)                                                            \
	X(cuMemcpyDtoD_v2_ptds, 3, NONE, WORK, 7000)                                                       \
	X(cuMemcpyDtoH, 3, NONE, WORK, 2000)                                                               \
	X(cuMemcpyDtoHAsync, 4, 3, WORK, 2000)                                                             \
	X(cuMemcpyDtoHAsync_v2, 4, 3, WORK, 3020)                                                          \
	X(cuMemcpyDtoHAsync_v2_ptsz, 4, 3, WORK, 7000)                                                     \
	X(cuMemcpyDtoH_v2, 3, NONE, WORK, 3020)                                                            \
	X(cuMemcpyDtoH_v2_ptds, 3, NONE, WORK, 7000)                                                       \
	X(cuMemcpyHtoA, 4, NONE, WORK, 2000)                                                               \
	X(cuMemcpyHtoAAsync, 5, 4, WORK, 2000)                                                             \
	X(cuMemcpyHtoAAsync_v2, 5, 4, WORK, 3020)                                                          \
	X(cuMemcpyHtoAAsync_v2_ptsz, 5, 4, WORK, 7000)                                                     \
	X(cuMemcpyHtoA_v2, 4, NONE, WORK, 3020)                                                            \
	X(cuMemcpyHtoA_v2_ptds, 4, NONE, WORK, 7000)                                                       \
	X(cuMemcpyHtoD, 3, NONE, WORK, 2000)                                                               \
	X(cuMemcpyHtoDAsync, 4, 3, WORK, 2000)                                                             \
	X(cuMemcpyHtoDAsync_v2, 4, 3, WORK, 3020)                                                          \
	X(cuMemcpyHtoDAsync_v2_ptsz, 4, 3, WORK, 7000)                                                     \
	X(cuMemcpyHtoD_v2, 3, NONE, WORK, 3020)                                                            \
	X(cuMemcpyHtoD_v2_ptds, 3, NONE, WORK, 7000)                                                       \
	X(cuMemcpyPeer, 5, NONE, WORK, 4000)                                                               \
	X(cuMemcpyPeerAsync, 6, 5, WORK, 4000)                                                             \
	X(cuMemcpyPeerAsync_ptsz, 6, 5, WORK, 7000)                                                        \
	X(cuMemcpyPeer_ptds, 5, NONE, WORK, 7000)                                                          \
	X(cuMemcpyWithAttributesAsync, 5, 4, WORK, 13020)                                                  \
	X(cuMemcpyWithAttributesAsync_ptsz, 5, 4, WORK, 13020)                                             \
	X(cuMemcpy_ptds, 3, NONE, WORK, 7000)                                                              \
	X(cuMemsetD16, 3, NONE, WORK, 2000)                                                                \
	X(cuMemsetD16Async, 4, 3, WORK, 3020)                                                              \
	X(cuMemsetD16Async_ptsz, 4, 3, WORK, 7000)                                                         \
	X(cuMemsetD16_v2, 3, NONE, WORK, 3020)                                                             \
	X(cuMemsetD16_v2_ptds, 3, NONE, WORK, 7000)                                                        \
	X(cuMemsetD2D16, 5, NONE, WORK, 2000)                                                              \
	X(cuMemsetD2D16Async, 6, 5, WORK, 3020)                                                            \
	X(cuMemsetD2D16Async_ptsz, 6, 5, WORK, 7000)                                                       \
	X(cuMemsetD2D16_v2, 5, NONE, WORK, 3020)                                                           \
	X(cuMemsetD2D16_v2_ptds, 5, NONE, WORK, 7000)                                                      \
	X(cuMemsetD2D32, 5, NONE, WORK, 2000)                                                              \
	X(cuMemsetD2D32Async, 6, 5, WORK, 3020)                                                            \
	X(cuMemsetD2D32Async_ptsz, 6, 5, WORK, 7000)                                                       \
	X(cuMemsetD2D32_v2, 5, NONE, WORK, 3020)                                                           \
	X(cuMemsetD2D32_v2_ptds, 5, NONE, WORK, 7000)                                                      \
	X(cuMemsetD2D8, 5, NONE, WORK, 2000)                                                               \
	X(cuMemsetD2D8Async, 6, 5, WORK, 3020)                                                             \
	X(cuMemsetD2D8Async_ptsz, 6, 5, WORK, 7000)                                                        \
	X(cuMemsetD2D8_v2, 5, NONE, WORK, 3020)                                                            \
	X(cuMemsetD2D8_v2_ptds, 5, NONE, WORK, 7000)                                                       \
	X(cuMemsetD32, 3, NONE, WORK, 2000)                                                                \
	X(cuMemsetD32Async, 4, 3, WORK, 3020)                                                              \
	X(cuMemsetD32Async_ptsz, 4, 3, WORK, 7000)                                                         \
	X(cuMemsetD32_v2, 3, NONE, WORK, 3020)                                                             \
	X(cuMemsetD32_v2_ptds, 3, NONE, WORK, 7000)                                                        \
	X(cuMemsetD8, 3, NONE, WORK, 2000)                                                                 \
	X(cuMemsetD8Async, 4, 3, WORK, 3020)                                                               \
	X(cuMemsetD8Async_ptsz, 4, 3, WORK, 7000)                                                          \
	X(cuMemsetD8_v2, 3, NONE, WORK, 3020)                                                              \
	X(cuMemsetD8_v2_ptds, 3, NONE, WORK, 7000)                                                         \
	X(cuSignalExternalSemaphoresAsync, 4, 3, WORK, 10000)                                              \
	X(cuSignalExternalSemaphoresAsync_ptsz, 4, 3, WORK, 10000)                                         \
	X(cuStreamAddCallback, 4, 0, WORK, 5000)                                                           \
	X(cuStreamAddCallback_ptsz, 4, 0, WORK, 7000)                                                      \
	X(cuStreamAttachMemAsync, 4, 0, WORK, 6000)                                                        \
	X(cuStreamAttachMemAsync_ptsz, 4, 0, WORK, 7000)                                                   \
	X(cuStreamBatchMemOp, 4, 0, WORK, 8000)                                                            \
	X(cuStreamBatchMemOp_ptsz, 4, 0, WORK, 8000)                                                       \
	X(cuStreamBatchMemOp_v2, 4, 0, WORK, 11070)                                                        \
	X(cuStreamBatchMemOp_v2_ptsz, 4, 0, WORK, 11070)                                                   \
	X(cuStreamWaitValue32, 4, 0, WORK, 8000)                                                           \
	X(cuStreamWaitValue32_ptsz, 4, 0, WORK, 8000)                                                      \
	X(cuStreamWaitValue32_v2, 4, 0, WORK, 11070)                                                       \
	X(cuStreamWaitValue32_v2_ptsz, 4, 0, WORK, 11070)                                                  \
	X(cuStreamWaitValue64, 4, 0, WORK, 9000)                                                           \
	X(cuStreamWaitValue64_ptsz, 4, 0, WORK, 9000)                                                      \
	X(cuStreamWaitValue64_v2, 4, 0, WORK, 11070)                                                       \
	X(cuStreamWaitValue64_v2_ptsz, 4, 0, WORK, 11070)                                                  \
	X(cuStreamWriteValue32, 4, 0, WORK, 8000)                                                          \
	X(cuStreamWriteValue32_ptsz, 4, 0, WORK, 8000)                                                     \
	X(cuStreamWriteValue32_v2, 4, 0, WORK, 11070)                                                      \
	X(cuStreamWriteValue32_v2_ptsz, 4, 0, WORK, 11070)                                                 \
	X(cuStreamWriteValue64, 4, 0, WORK, 9000)                                                          \
	X(cuStreamWriteValue64_ptsz, 4, 0, WORK, 9000)                                                     \
	X(cuStreamWriteValue64_v2, 4, 0, WORK, 11070)                                                      \
	X(cuStreamWriteValue64_v2_ptsz, 4, 0, WORK, 11070)                                                 \
	X(cuWaitExternalSemaphoresAsync, 4, 3, WORK, 10000)                                                \
	X(cuWaitExternalSemaphoresAsync_ptsz, 4, 3, WORK, 10000)                                           \
	X(cuStreamBeginCapture, 1, 0, CAPTURE, 10000)                                                      \
	X(cuStreamBeginCaptureToCig, 2, 0, CAPTURE, 13010)                                                 \
	X(cuStreamBeginCaptureToCig_ptsz, 2, 0, CAPTURE, 13010)                                            \
	X(cuStreamBeginCaptureToGraph, 6, 0, CAPTURE, 12030)                                               \
	X(cuStreamBeginCaptureToGraph_ptsz, 6, 0, CAPTURE, 12030)                                          \
	X(cuStreamBeginCapture_ptsz, 1, 0, CAPTURE, 10000)                                                 \
	X(cuStreamBeginCapture_v2, 2, 0, CAPTURE, 10010)                                                   \
	X(cuStreamBeginCapture_v2_ptsz, 2, 0, CAPTURE, 10010)                                              \
	X(cuStreamBeginRecaptureToGraph, 5, 0, CAPTURE, 13030)                                             \
	X(cuStreamBeginRecaptureToGraph_ptsz, 5, 0, CAPTURE, 13030)                                        \
	X(cuCtxDestroy, 1, NONE, DESTROY, 2000)                                                            \
	X(cuCtxDestroy_v2, 1, NONE, DESTROY, 4000)                                                         \
	X(cuCtxDetach, 1, NONE, DESTROY, 2000)                                                             \
	X(cuDevicePrimaryCtxRelease, 1, NONE, DESTROY, 7000)                                               \
	X(cuDevicePrimaryCtxRelease_v2, 1, NONE, DESTROY, 11000)                                           \
	X(cuDevicePrimaryCtxReset, 1, NONE, DESTROY, 7000)                                                 \
	X(cuDevicePrimaryCtxReset_v2, 1, NONE, DESTROY, 11000)                                             \
	X(cuGreenCtxDestroy, 1, NONE, DESTROY, 12040)                                                      \
	X(cuStreamDestroy, 1, 0, DESTROY, 2000)                                                            \
	X(cuStreamDestroy_v2, 1, 0, DESTROY, 4000)                                                         \
	X(cuMemExportToShareableHandle, 4, NONE, LEND, 10020)                                              \
	X(cuMemGetHandleForAddressRange, 5, NONE, LEND, 11070)                                             \
	X(cuMemRelease, 1, NONE, LEND, 10020)                                                              \
	X(cuMemRetainAllocationHandle, 2, NONE, LEND, 11000)                                               \
	X(cuCtxSynchronize, 0, NONE, POLL, 2000)                                                           \
	X(cuCtxSynchronize_v2, 1, NONE, POLL, 13000)                                                       \
	X(cuDeviceGetName, 3, NONE, POLL, 2000)                                                            \
	X(cuEventElapsedTime, 3, NONE, POLL, 2000)                                                         \
	X(cuEventElapsedTime_v2, 3, NONE, POLL, 12080)                                                     \
	X(cuEventQuery, 1, NONE, POLL, 2000)                                                               \
	X(cuEventSynchronize, 1, NONE, POLL, 2000)                                                         \
	X(cuIpcGetMemHandle, 2, NONE, POLL, 4010)                                                          \
	X(cuMemGetInfo, 2, NONE, POLL, 2000)                                                               \
	X(cuMemGetInfo_v2, 2, NONE, POLL, 3020)                                                            \
	X(cuMemPoolDestroy, 1, NONE, POLL, 11020)                                                          \
	X(cuModuleUnload, 1, NONE, POLL, 2000)                                                             \
	X(cuStreamQuery, 1, NONE, POLL, 2000)                                                              \
	X(cuStreamQuery_ptsz, 1, NONE, POLL, 7000)                                                         \
	X(cuStreamSynchronize, 1, NONE, POLL, 2000)                                                        \
	X(cuStreamSynchronize_ptsz, 1, NONE, POLL, 7000)

#endif
