// Prototypes of the driver functions, as cuda.h has them. The runtime library takes
// its function pointer types from here too.
#ifndef CUDASIM_API_H
#define CUDASIM_API_H

#include "types.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuInit(unsigned flags);
EXPORT CUresult cuDriverGetVersion(int *version);
EXPORT CUresult cuGetErrorName(CUresult error, const char **text);
EXPORT CUresult cuGetErrorString(CUresult error, const char **text);
EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
				    CUdriverProcAddressQueryResult *status);

EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid);
EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal);
EXPORT CUresult cuDeviceGetCount(int *count);
EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device);
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device);
EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text);
EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device,
					CUdevice peer);
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags,
			       CUdevice device);
EXPORT CUresult cuCtxDestroy_v2(CUcontext context);
EXPORT CUresult cuCtxGetCurrent(CUcontext *context);
EXPORT CUresult cuCtxSetCurrent(CUcontext context);
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context);
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context);
EXPORT CUresult cuCtxGetDevice(CUdevice *device);
EXPORT CUresult cuCtxGetFlags(unsigned *flags);
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
EXPORT CUresult cuCtxSynchronize(void);
EXPORT CUresult cuCtxRecordEvent(CUcontext context, CUevent event);
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer);

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
				    unsigned long long flags);
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
			    const CUmemAllocationProp *prop, unsigned long long flags);
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			 unsigned long long flags);
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size);
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);
EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address);
EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
					      CUmemAllocationGranularity_flags option);
EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						       CUmemGenericAllocationHandle handle);
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
					     CUmemAllocationHandleType type, unsigned long long flags);
EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop);
EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
				   size_t memory_offset, size_t size, unsigned long long flags);
EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
				      CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
				      unsigned long long flags);
EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr memory, size_t size,
				    unsigned long long flags);
EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
				       CUdeviceptr memory, size_t size, unsigned long long flags);
EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size);
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					       CUmemAllocationHandleType type);

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
				   unsigned element);
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags);
EXPORT CUresult cuMemFree_v2(CUdeviceptr address);
EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address);
EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address);
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
				       CUdeviceptr address);
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags);
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address);
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream);
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool,
					CUstream stream);
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool);
EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
						 unsigned long long flags);
EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type,
						   unsigned long long flags);
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags);
EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size);
EXPORT CUresult cuMemFreeHost(void *pointer);
EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags);
EXPORT CUresult cuMemHostUnregister(void *pointer);
EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *pointer);
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags);

EXPORT CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t size);
EXPORT CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream);
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size);
EXPORT CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size);
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t size);
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream);
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream);
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream);
EXPORT CUresult cuMemcpyPeer(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
			     CUcontext source_context, size_t size);
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
				  CUcontext source_context, size_t size, CUstream stream);
EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy);
EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream);
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count);
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count);
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count);
EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr target, size_t pitch, unsigned char value, size_t width,
				size_t height);
EXPORT CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream);
EXPORT CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream);
EXPORT CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream);
EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr target, size_t pitch, unsigned char value, size_t width,
				  size_t height, CUstream stream);

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags);
EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
EXPORT CUresult cuStreamDestroy_v2(CUstream stream);
EXPORT CUresult cuStreamSynchronize(CUstream stream);
EXPORT CUresult cuStreamQuery(CUstream stream);
EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device);
EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags);
EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority);
EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id);
EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags);
EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data);
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, void *jit_options, void **jit_values,
				  unsigned jit_count, void *options, void **values, unsigned count);
EXPORT CUresult cuLibraryUnload(CUlibrary library);
EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
			       CUstream stream, void **parameters, void **extra);
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
				 void **extra);
EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
					    const CUgraphEdgeData *edges, size_t count,
					    CUstreamCaptureMode mode);
EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id);
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
					  CUgraph *graph, const CUgraphNode **dependencies, size_t *count);
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
					  CUgraph *graph, const CUgraphNode **dependencies,
					  const CUgraphEdgeData **edges, size_t *count);
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags);
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream);
EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
EXPORT CUresult cuEventQuery(CUevent event);
EXPORT CUresult cuEventSynchronize(CUevent event);
EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);
EXPORT CUresult cuEventDestroy_v2(CUevent event);

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
					     CUDA_GRAPH_INSTANTIATE_PARAMS *params);
EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
EXPORT CUresult cuGraphDestroy(CUgraph graph);
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec);

// The same on the calling thread's own default stream where the stream is NULL or implied.
#include "functions.h"
#define X(symbol, suffix) EXPORT __typeof__(symbol) symbol##_##suffix;
PER_THREAD_FUNCTIONS(X)
#undef X

#endif
