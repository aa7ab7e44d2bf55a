/* calls lists the functions of the driver that the gate stands in front of, of CUDA 12 and 13 (cuda.h of 12.9 and
 * 13.5), old versions of them included:
 *
 *   X(symbol, how many arguments, which of them (a, b ...) is the stream, kind, the first CUDA version that has it)
 *
 * WORK      gives the device work that reads or writes memory, or that runs the program's own functions later.
 * CAPTURE   begins to capture a stream.
 * LEND      exports memory to other processes or libraries, which use it at any time. It passes, and libtms.so notes it
 *           (preload/mapping.c): it is here so that a newer version of it is noticed.
 * POLL      does not wait for the driver's lock, and reads pages that the driver's checkpoint has taken away, or is
 *           refused meanwhile (304). Seen with driver 580: docs/what-stays.md. Or it ends streams. Only the checkpoint
 *           holds it.
 *
 * Calls of the last four kinds are made again where they found too little memory and others made room for them.
 *
 * LAUNCH    is WORK that has not begun where it found too little memory: the driver loads a kernel's code, and makes room
 *           for its stacks, before it queues the one kernel. A graph has many, and nothing says that none has begun.
 * ALLOCATE  is WORK, too, and allocates as many bytes as its second argument.
 * TAKE      takes device memory for itself (b: as many bytes), and the gate does not hold it.
 * CONTEXT   likewise, on the device (b, c ...).
 *
 * Each argument is an integer, a pointer or a struct of 8 bytes, so one word. Left out, because they put no work on the
 * program's memory: what the device records and waits for (cuEventRecord, cuStreamWaitEvent), what frees memory at once
 * (cuMemFree), hints (cuMemAdvise), what changes graphs that are not running, and cudaGL.h, cudaEGL.h, cudaVDPAU.h, whose
 * memory is not the program's to pause. */
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

#define BOTH_PTSZ(X, name, words, stream, kind, old, since) \
	PTSZ(X, name, words, stream, kind, old) PTSZ(X, name##_v2, words, stream, kind, since)
/* Synchronous and, with more arguments, not. */
#define COPY(X, name, words, more, stream) \
	V2_PTDS(X, name, words, 0, WORK, 2000, 3020) V2_PTSZ(X, name##Async, more, stream, WORK, 2000, 3020)
#define FILL(X, name, words, more, stream) \
	V2_PTDS(X, name, words, 0, WORK, 2000, 3020) PTSZ(X, name##Async, more, stream, WORK, 3020)

#define GATED_CALLS(X) \
	PTSZ(X, cuFabricCpyBatchAsync, 4, d, WORK, 13050) \
	PTSZ(X, cuGraphInstantiateWithParams, 3, 0, LAUNCH, 12000) \
	PTSZ(X, cuGraphLaunch, 2, b, WORK, 10000) \
	PTSZ(X, cuGraphUpload, 2, b, LAUNCH, 11010) \
	PTSZ(X, cuGraphicsMapResources, 3, c, WORK, 3000) \
	PTSZ(X, cuGraphicsUnmapResources, 3, c, WORK, 3000) \
	X(cuLaunch, 1, 0, WORK, 2000) \
	PTSZ(X, cuLaunchCooperativeKernel, 10, i, LAUNCH, 9000) \
	X(cuLaunchCooperativeKernelMultiDevice, 3, 0, WORK, 9000) \
	X(cuLaunchGrid, 3, 0, WORK, 2000) \
	X(cuLaunchGridAsync, 4, d, WORK, 2000) \
	PTSZ(X, cuLaunchHostFunc, 3, a, WORK, 10000) \
	PTSZ(X, cuLaunchHostFunc_v2, 4, a, WORK, 13010) \
	PTSZ(X, cuLaunchKernel, 11, i, LAUNCH, 4000) \
	PTSZ(X, cuLaunchKernelEx, 4, 0, LAUNCH, 11060) \
	PTSZ(X, cuMemAllocAsync, 3, c, ALLOCATE, 11020) \
	PTSZ(X, cuMemAllocFromPoolAsync, 4, d, ALLOCATE, 11020) \
	PTSZ(X, cuMemBatchDecompressAsync, 5, e, WORK, 12060) \
	PTSZ(X, cuMemDiscardAndPrefetchBatchAsync, 8, h, WORK, 13000) \
	PTSZ(X, cuMemDiscardBatchAsync, 5, e, WORK, 13000) \
	PTSZ(X, cuMemFreeAsync, 2, b, WORK, 11020) \
	PTSZ(X, cuMemMapArrayAsync, 3, c, WORK, 11010) \
	PTSZ(X, cuMemPrefetchAsync, 4, d, WORK, 8000) \
	PTSZ(X, cuMemPrefetchAsync_v2, 5, e, WORK, 12020) \
	PTSZ(X, cuMemPrefetchBatchAsync, 8, h, WORK, 13000) \
	PTDS(X, cuMemcpy, 3, 0, WORK, 4000) \
	COPY(X, cuMemcpy2D, 1, 2, b) \
	V2_PTDS(X, cuMemcpy2DUnaligned, 1, 0, WORK, 2000, 3020) \
	COPY(X, cuMemcpy3D, 1, 2, b) \
	PTSZ(X, cuMemcpy3DBatchAsync, 5, e, WORK, 12080) \
	PTSZ(X, cuMemcpy3DBatchAsync_v2, 4, d, WORK, 13000) \
	PTDS(X, cuMemcpy3DPeer, 1, 0, WORK, 4000) \
	PTSZ(X, cuMemcpy3DPeerAsync, 2, b, WORK, 4000) \
	PTSZ(X, cuMemcpy3DWithAttributesAsync, 3, c, WORK, 13020) \
	PTSZ(X, cuMemcpyAsync, 4, d, WORK, 4000) \
	V2_PTDS(X, cuMemcpyAtoA, 5, 0, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyAtoD, 4, 0, WORK, 2000, 3020) \
	COPY(X, cuMemcpyAtoH, 4, 5, e) \
	PTSZ(X, cuMemcpyBatchAsync, 9, i, WORK, 12080) \
	PTSZ(X, cuMemcpyBatchAsync_v2, 8, h, WORK, 13000) \
	V2_PTDS(X, cuMemcpyDtoA, 4, 0, WORK, 2000, 3020) \
	V2_PTDS(X, cuMemcpyDtoD, 3, 0, WORK, 2000, 3020) \
	V2_PTSZ(X, cuMemcpyDtoDAsync, 4, d, WORK, 3000, 3020) \
	COPY(X, cuMemcpyDtoH, 3, 4, d) \
	COPY(X, cuMemcpyHtoA, 4, 5, e) \
	COPY(X, cuMemcpyHtoD, 3, 4, d) \
	PTDS(X, cuMemcpyPeer, 5, 0, WORK, 4000) \
	PTSZ(X, cuMemcpyPeerAsync, 6, f, WORK, 4000) \
	PTSZ(X, cuMemcpyWithAttributesAsync, 5, e, WORK, 13020) \
	FILL(X, cuMemsetD16, 3, 4, d) \
	FILL(X, cuMemsetD2D16, 5, 6, f) \
	FILL(X, cuMemsetD2D32, 5, 6, f) \
	FILL(X, cuMemsetD2D8, 5, 6, f) \
	FILL(X, cuMemsetD32, 3, 4, d) \
	FILL(X, cuMemsetD8, 3, 4, d) \
	PTSZ(X, cuSignalExternalSemaphoresAsync, 4, d, WORK, 10000) \
	PTSZ(X, cuStreamAddCallback, 4, a, WORK, 5000) \
	PTSZ(X, cuStreamAttachMemAsync, 4, a, WORK, 6000) \
	BOTH_PTSZ(X, cuStreamBatchMemOp, 4, a, WORK, 8000, 11070) \
	BOTH_PTSZ(X, cuStreamWaitValue32, 4, a, WORK, 8000, 11070) \
	BOTH_PTSZ(X, cuStreamWaitValue64, 4, a, WORK, 9000, 11070) \
	BOTH_PTSZ(X, cuStreamWriteValue32, 4, a, WORK, 8000, 11070) \
	BOTH_PTSZ(X, cuStreamWriteValue64, 4, a, WORK, 9000, 11070) \
	PTSZ(X, cuWaitExternalSemaphoresAsync, 4, d, WORK, 10000) \
	PTSZ(X, cuStreamBeginCapture, 1, a, CAPTURE, 10000) \
	PTSZ(X, cuStreamBeginCaptureToCig, 2, a, CAPTURE, 13010) \
	PTSZ(X, cuStreamBeginCaptureToGraph, 6, a, CAPTURE, 12030) \
	PTSZ(X, cuStreamBeginCapture_v2, 2, a, CAPTURE, 10010) \
	PTSZ(X, cuStreamBeginRecaptureToGraph, 5, a, CAPTURE, 13030) \
	V2(X, cuCtxCreate, 3, c, CONTEXT, 2000, 3020) \
	X(cuCtxCreate_v4, 4, d, CONTEXT, 12050) \
	X(cuDevicePrimaryCtxRetain, 2, b, CONTEXT, 7000) \
	X(cuEventCreate, 2, 0, TAKE, 2000) \
	X(cuGraphInstantiateWithFlags, 3, 0, TAKE, 11040) \
	X(cuKernelGetFunction, 2, 0, TAKE, 12000) \
	X(cuLibraryGetGlobal, 4, 0, TAKE, 12000) \
	X(cuLibraryGetKernel, 3, 0, TAKE, 12000) \
	X(cuLibraryGetModule, 2, 0, TAKE, 12000) \
	X(cuLibraryLoadData, 8, 0, TAKE, 12000) \
	X(cuLibraryLoadFromFile, 8, 0, TAKE, 12000) \
	V2(X, cuMemAlloc, 2, b, TAKE, 2000, 3020) \
	X(cuMemCreate, 4, b, TAKE, 10020) \
	X(cuModuleGetFunction, 3, 0, TAKE, 2000) \
	V2(X, cuModuleGetGlobal, 4, 0, TAKE, 2000, 3020) \
	X(cuModuleLoad, 2, 0, TAKE, 2000) \
	X(cuModuleLoadData, 2, 0, TAKE, 2000) \
	X(cuModuleLoadDataEx, 5, 0, TAKE, 2010) \
	X(cuModuleLoadFatBinary, 2, 0, TAKE, 2000) \
	X(cuStreamCreate, 2, 0, TAKE, 2000) \
	X(cuStreamCreateWithPriority, 3, 0, TAKE, 5050) \
	X(cuMemExportToShareableHandle, 4, 0, LEND, 10020) \
	X(cuMemGetHandleForAddressRange, 5, 0, LEND, 11070) \
	V2(X, cuCtxDestroy, 1, 0, POLL, 2000, 4000) \
	X(cuCtxDetach, 1, 0, POLL, 2000) \
	X(cuCtxSynchronize, 0, 0, POLL, 2000) \
	X(cuCtxSynchronize_v2, 1, 0, POLL, 13000) \
	X(cuDeviceGetName, 3, 0, POLL, 2000) \
	V2(X, cuDevicePrimaryCtxRelease, 1, 0, POLL, 7000, 11000) \
	V2(X, cuDevicePrimaryCtxReset, 1, 0, POLL, 7000, 11000) \
	V2(X, cuEventElapsedTime, 3, 0, POLL, 2000, 12080) \
	X(cuEventQuery, 1, 0, POLL, 2000) \
	X(cuEventSynchronize, 1, 0, POLL, 2000) \
	X(cuGreenCtxDestroy, 1, 0, POLL, 12040) \
	X(cuIpcGetMemHandle, 2, 0, POLL, 4010) \
	V2(X, cuMemGetInfo, 2, 0, POLL, 2000, 3020) \
	X(cuMemPoolDestroy, 1, 0, POLL, 11020) \
	X(cuModuleUnload, 1, 0, POLL, 2000) \
	V2(X, cuStreamDestroy, 1, 0, POLL, 2000, 4000) \
	PTSZ(X, cuStreamQuery, 1, 0, POLL, 2000) \
	PTSZ(X, cuStreamSynchronize, 1, 0, POLL, 2000)

#endif
