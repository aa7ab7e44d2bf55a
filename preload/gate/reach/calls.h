/* calls lists the functions of the driver that the gate stands in front of, of CUDA 12 and 13 (cuda.h of 12.9 and
 * 13.5), old versions of them included:
 *
 *   X(symbol, how many arguments, which of them is the stream, kind, the first CUDA version that has it)
 *
 * WORK      gives the device work that reads or writes memory, or that runs the program's own functions later.
 * CAPTURE   begins to capture a stream.
 * DESTROY   ends streams: nobody may ask about a handle that a mark names after it.
 * LEND      exports memory to other processes or libraries, which use it at any time, or works on its handle. It always
 *           passes, and is noted.
 * POLL      does not wait for the driver's lock, and reads pages that the driver's checkpoint has taken away, or is
 *           refused meanwhile (304). Seen with driver 580: docs/what-stays.md. Only the checkpoint holds it.
 *
 * Each argument is an integer, a pointer or a struct of 8 bytes, so one word. Left out, because they put no work on the
 * program's memory: what the device records and waits for (cuEventRecord, cuStreamWaitEvent), what makes and frees
 * memory at once (cuMemAlloc, cuMemFree, cuArrayCreate), what loads code (cuModuleLoadData), hints (cuMemAdvise), what
 * changes graphs that are not running, and cudaGL.h, cudaEGL.h, cudaVDPAU.h, whose memory is not the program's to
 * pause. */
#ifndef REACH_CALLS_H
#define REACH_CALLS_H

/* The same, and also with "_ptsz" or "_ptds" behind it, for per-thread streams, which CUDA has from 7.0 on. */
#define PTSZ(X, name, words, stream, kind, since) \
	X(name, words, stream, kind, since) X(name##_ptsz, words, stream, kind, since > 7000 ? since : 7000)
#define PTDS(X, name, words, stream, kind, since) \
	X(name, words, stream, kind, since) X(name##_ptds, words, stream, kind, since > 7000 ? since : 7000)
/* And an older one with the same arguments, which the one with "_v2" has replaced. */
#define V2(X, name, words, stream, kind, old, since) \
	X(name, words, stream, kind, old) X(name##_v2, words, stream, kind, since)
#define V2_PTSZ(X, name, words, stream, kind, old, since) \
	X(name, words, stream, kind, old) PTSZ(X, name##_v2, words, stream, kind, since)
#define V2_PTDS(X, name, words, stream, kind, old, since) \
	X(name, words, stream, kind, old) PTDS(X, name##_v2, words, stream, kind, since)

#define GATED_CALLS(X) \
	PTSZ(X, cuFabricCpyBatchAsync, 4, 3, WORK, 13050) \
	PTSZ(X, cuGraphInstantiateWithParams, 3, NONE, WORK, 12000) \
	PTSZ(X, cuGraphLaunch, 2, 1, WORK, 10000) \
	PTSZ(X, cuGraphUpload, 2, 1, WORK, 11010) \
	PTSZ(X, cuGraphicsMapResources, 3, 2, WORK, 3000) \
	PTSZ(X, cuGraphicsUnmapResources, 3, 2, WORK, 3000) \
	X(cuLaunch, 1, NONE, WORK, 2000) \
	PTSZ(X, cuLaunchCooperativeKernel, 10, 8, WORK, 9000) \
	X(cuLaunchCooperativeKernelMultiDevice, 3, NONE, WORK, 9000) \
	X(cuLaunchGrid, 3, NONE, WORK, 2000) \
	X(cuLaunchGridAsync, 4, 3, WORK, 2000) \
	PTSZ(X, cuLaunchHostFunc, 3, 0, WORK, 10000) \
	PTSZ(X, cuLaunchHostFunc_v2, 4, 0, WORK, 13010) \
	PTSZ(X, cuLaunchKernel, 11, 8, WORK, 4000) \
	PTSZ(X, cuLaunchKernelEx, 4, NONE, WORK, 11060) \
	PTSZ(X, cuMemAllocAsync, 3, 2, WORK, 11020) \
	PTSZ(X, cuMemAllocFromPoolAsync, 4, 3, WORK, 11020) \
	PTSZ(X, cuMemBatchDecompressAsync, 5, 4, WORK, 12060) \
	PTSZ(X, cuMemDiscardAndPrefetchBatchAsync, 8, 7, WORK, 13000) \
	PTSZ(X, cuMemDiscardBatchAsync, 5, 4, WORK, 13000) \
	PTSZ(X, cuMemFreeAsync, 2, 1, WORK, 11020) \
	PTSZ(X, cuMemMapArrayAsync, 3, 2, WORK, 11010) \
	PTSZ(X, cuMemPrefetchAsync, 4, 3, WORK, 8000) \
	PTSZ(X, cuMemPrefetchAsync_v2, 5, 4, WORK, 12020) \
	PTSZ(X, cuMemPrefetchBatchAsync, 8, 7, WORK, 13000) \
	PTDS(X, cuMemcpy, 3, NONE, WORK, 4000) \
	V2_PTDS(X, cuMemcpy2D, 1, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpy2DAsync, 2, 1, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpy2DUnaligned, 1, NONE, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpy3D, 1, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpy3DAsync, 2, 1, WORK, 2000, 3020) \
	PTSZ(X, cuMemcpy3DBatchAsync, 5, 4, WORK, 12080) \
	PTSZ(X, cuMemcpy3DBatchAsync_v2, 4, 3, WORK, 13000) \
	PTDS(X, cuMemcpy3DPeer, 1, NONE, WORK, 4000) \
	PTSZ(X, cuMemcpy3DPeerAsync, 2, 1, WORK, 4000) \
	PTSZ(X, cuMemcpy3DWithAttributesAsync, 3, 2, WORK, 13020) \
	PTSZ(X, cuMemcpyAsync, 4, 3, WORK, 4000) \
	V2_PTDS(X, cuMemcpyAtoA, 5, NONE, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyAtoD, 4, NONE, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyAtoH, 4, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpyAtoHAsync, 5, 4, WORK, 2000, 3020) \
	PTSZ(X, cuMemcpyBatchAsync, 9, 8, WORK, 12080) \
	PTSZ(X, cuMemcpyBatchAsync_v2, 8, 7, WORK, 13000) \
	V2_PTDS(X, cuMemcpyDtoA, 4, NONE, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyDtoD, 3, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpyDtoDAsync, 4, 3, WORK, 3000, 3020) \
	V2_PTDS(X, cuMemcpyDtoH, 3, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpyDtoHAsync, 4, 3, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyHtoA, 4, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpyHtoAAsync, 5, 4, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyHtoD, 3, NONE, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpyHtoDAsync, 4, 3, WORK, 2000, 3020) \
	PTDS(X, cuMemcpyPeer, 5, NONE, WORK, 4000) \
	PTSZ(X, cuMemcpyPeerAsync, 6, 5, WORK, 4000) \
	PTSZ(X, cuMemcpyWithAttributesAsync, 5, 4, WORK, 13020) \
	V2_PTDS(X, cuMemsetD16, 3, NONE, WORK, 2000, 3020) \
	PTSZ(X, cuMemsetD16Async, 4, 3, WORK, 3020) \
	V2_PTDS(X, cuMemsetD2D16, 5, NONE, WORK, 2000, 3020) \
	PTSZ(X, cuMemsetD2D16Async, 6, 5, WORK, 3020) \
	V2_PTDS(X, cuMemsetD2D32, 5, NONE, WORK, 2000, 3020) \
	PTSZ(X, cuMemsetD2D32Async, 6, 5, WORK, 3020) \
	V2_PTDS(X, cuMemsetD2D8, 5, NONE, WORK, 2000, 3020) \
	PTSZ(X, cuMemsetD2D8Async, 6, 5, WORK, 3020) \
	V2_PTDS(X, cuMemsetD32, 3, NONE, WORK, 2000, 3020) \
	PTSZ(X, cuMemsetD32Async, 4, 3, WORK, 3020) \
	V2_PTDS(X, cuMemsetD8, 3, NONE, WORK, 2000, 3020) \
	PTSZ(X, cuMemsetD8Async, 4, 3, WORK, 3020) \
	PTSZ(X, cuSignalExternalSemaphoresAsync, 4, 3, WORK, 10000) \
	PTSZ(X, cuStreamAddCallback, 4, 0, WORK, 5000) \
	PTSZ(X, cuStreamAttachMemAsync, 4, 0, WORK, 6000) \
	PTSZ(X, cuStreamBatchMemOp, 4, 0, WORK, 8000) \
	PTSZ(X, cuStreamBatchMemOp_v2, 4, 0, WORK, 11070) \
	PTSZ(X, cuStreamWaitValue32, 4, 0, WORK, 8000) \
	PTSZ(X, cuStreamWaitValue32_v2, 4, 0, WORK, 11070) \
	PTSZ(X, cuStreamWaitValue64, 4, 0, WORK, 9000) \
	PTSZ(X, cuStreamWaitValue64_v2, 4, 0, WORK, 11070) \
	PTSZ(X, cuStreamWriteValue32, 4, 0, WORK, 8000) \
	PTSZ(X, cuStreamWriteValue32_v2, 4, 0, WORK, 11070) \
	PTSZ(X, cuStreamWriteValue64, 4, 0, WORK, 9000) \
	PTSZ(X, cuStreamWriteValue64_v2, 4, 0, WORK, 11070) \
	PTSZ(X, cuWaitExternalSemaphoresAsync, 4, 3, WORK, 10000) \
	PTSZ(X, cuStreamBeginCapture, 1, 0, CAPTURE, 10000) \
	PTSZ(X, cuStreamBeginCaptureToCig, 2, 0, CAPTURE, 13010) \
	PTSZ(X, cuStreamBeginCaptureToGraph, 6, 0, CAPTURE, 12030) \
	PTSZ(X, cuStreamBeginCapture_v2, 2, 0, CAPTURE, 10010) \
	PTSZ(X, cuStreamBeginRecaptureToGraph, 5, 0, CAPTURE, 13030) \
	V2(X, cuCtxDestroy, 1, NONE, DESTROY, 2000, 4000) \
	X(cuCtxDetach, 1, NONE, DESTROY, 2000) \
	V2(X, cuDevicePrimaryCtxRelease, 1, NONE, DESTROY, 7000, 11000) \
	V2(X, cuDevicePrimaryCtxReset, 1, NONE, DESTROY, 7000, 11000) \
	X(cuGreenCtxDestroy, 1, NONE, DESTROY, 12040) \
	V2(X, cuStreamDestroy, 1, 0, DESTROY, 2000, 4000) \
	X(cuMemExportToShareableHandle, 4, NONE, LEND, 10020) \
	X(cuMemGetHandleForAddressRange, 5, NONE, LEND, 11070) \
	X(cuMemRelease, 1, NONE, LEND, 10020) \
	X(cuMemRetainAllocationHandle, 2, NONE, LEND, 11000) \
	X(cuCtxSynchronize, 0, NONE, POLL, 2000) \
	X(cuCtxSynchronize_v2, 1, NONE, POLL, 13000) \
	X(cuDeviceGetName, 3, NONE, POLL, 2000) \
	V2(X, cuEventElapsedTime, 3, NONE, POLL, 2000, 12080) \
	X(cuEventQuery, 1, NONE, POLL, 2000) \
	X(cuEventSynchronize, 1, NONE, POLL, 2000) \
	X(cuIpcGetMemHandle, 2, NONE, POLL, 4010) \
	V2(X, cuMemGetInfo, 2, NONE, POLL, 2000, 3020) \
	X(cuMemPoolDestroy, 1, NONE, POLL, 11020) \
	X(cuModuleUnload, 1, NONE, POLL, 2000) \
	PTSZ(X, cuStreamQuery, 1, NONE, POLL, 2000) \
	PTSZ(X, cuStreamSynchronize, 1, NONE, POLL, 2000)

#endif
