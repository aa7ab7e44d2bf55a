// The driver's functions, one a row, grouped by the file of entry/ that defines them. The rows give their prototypes,
// the runtime's pointers to them, what cuGetProcAddress finds, and what can be counted and made to fail.
//
//   X(the CUDA version that introduced it (1000*major + 10*minor), what it needs, its plain name, the symbol's
//     suffix, parameters, what it does)
//
// Needs: INIT cuInit, CTX a current context in good health, ANY nothing. What it does is an expression that only its
// own file understands. Rows of T and S also define a function with the suffix _ptds or _ptsz, for the calling thread's
// own default stream in place of the legacy one: there the expression's "own" is true, and MINE(stream) is that stream.
// Versions of one plain name come oldest first.
#ifndef CUDASIM_API_H
#define CUDASIM_API_H

#include "types.h"

#define EXPORT __attribute__((visibility("default")))

#define ERROR_FUNCTIONS(X) \
	X(6000, ANY, cuGetErrorName, , (CUresult error, const char **text), look_up(error, text, false)) \
	X(6000, ANY, cuGetErrorString, , (CUresult error, const char **text), look_up(error, text, true))

#define PROC_ADDRESS_FUNCTIONS(X) \
	X(11030, ANY, cuGetProcAddress, , (const char *symbol, void **function, int version, uint64_t flags), \
	  look_up_one(symbol, function, version, flags)) \
	X(12000, ANY, cuGetProcAddress, _v2, (const char *symbol, void **function, int version, uint64_t flags, \
	  CUdriverProcAddressQueryResult *status), look_up(symbol, function, version, flags, status))

#define CHECKPOINT_FUNCTIONS(X) \
	X(12080, ANY, cuCheckpointProcessGetState, , (int pid, CUprocessState *state), state_of(pid, state)) \
	X(12080, ANY, cuCheckpointProcessLock, , (int pid, CUcheckpointLockArgs *args), lock(pid, args)) \
	X(12080, ANY, cuCheckpointProcessCheckpoint, , (int pid, CUcheckpointCheckpointArgs *args), \
	  change(pid, args ? args->reserved : NULL, checkpoint)) \
	X(12080, ANY, cuCheckpointProcessRestore, , (int pid, CUcheckpointRestoreArgs *args), \
	  restore(pid, args)) \
	X(12080, ANY, cuCheckpointProcessUnlock, , (int pid, CUcheckpointUnlockArgs *args), \
	  change(pid, args ? args->reserved : NULL, unlock))

#define DEVICE_FUNCTIONS(X) \
	X(2000, ANY, cuInit, , (unsigned flags), init(flags)) \
	X(2020, ANY, cuDriverGetVersion, , (int *version), GIVES(version, DRIVER_VERSION)) \
	X(2000, INIT, cuDeviceGet, , (CUdevice *device, int ordinal), DEVICE_GIVES(ordinal, device, ordinal)) \
	X(2000, INIT, cuDeviceGetCount, , (int *count), GIVES(count, sim.settings.device_count)) \
	X(2000, INIT, cuDeviceGetName, , (char *name, int length, CUdevice device), name_of(name, length, device)) \
	X(9020, INIT, cuDeviceGetUuid, , (CUuuid *uuid, CUdevice device), uuid_of(uuid, device)) \
	X(11040, INIT, cuDeviceGetUuid, _v2, (CUuuid *uuid, CUdevice device), part_uuid_of(uuid, device)) \
	X(3020, INIT, cuDeviceTotalMem, _v2, (size_t *bytes, CUdevice device), \
	  DEVICE_GIVES(device, bytes, memory.devices[device].total)) \
	X(2000, INIT, cuDeviceGetAttribute, , (int *value, int attribute, CUdevice device), \
	  attribute_of(value, attribute, device)) \
	X(4000, INIT, cuDeviceCanAccessPeer, , (int *can, CUdevice device, CUdevice peer), \
	  DEVICE_GIVES(device_valid(device) ? peer : device, can, peers(device, peer)))

#define CONTEXT_FUNCTIONS(X) \
	X(7000, INIT, cuDevicePrimaryCtxRetain, , (CUcontext *context, CUdevice device), retain(context, device)) \
	X(11000, INIT, cuDevicePrimaryCtxRelease, _v2, (CUdevice device), release(device)) \
	X(11000, INIT, cuDevicePrimaryCtxReset, _v2, (CUdevice device), reset(device)) \
	X(7000, INIT, cuDevicePrimaryCtxGetState, , (CUdevice device, unsigned *flags, int *active), \
	  state_of(device, flags, active)) \
	X(3020, INIT, cuCtxCreate, _v2, (CUcontext *context, unsigned flags, CUdevice device), \
	  ((void)flags, create(context, NULL, device))) \
	X(12050, INIT, cuCtxCreate, _v4, (CUcontext *context, CUctxCreateParams *params, unsigned flags, \
	  CUdevice device), ((void)flags, create(context, params, device))) \
	X(4000, INIT, cuCtxDestroy, _v2, (CUcontext context), destroy(context)) \
	X(4000, INIT, cuCtxGetCurrent, , (CUcontext *context), GIVES(context, current_handle())) \
	X(4000, INIT, cuCtxSetCurrent, , (CUcontext context), set_current(context)) \
	X(4000, INIT, cuCtxPushCurrent, _v2, (CUcontext context), \
	  enterable(context) ? push((uint64_t)context) : CUDA_ERROR_INVALID_CONTEXT) \
	X(4000, INIT, cuCtxPopCurrent, _v2, (CUcontext *context), pop(context)) \
	X(2000, INIT, cuCtxGetDevice, , (CUdevice *device), device_of_current(device)) \
	X(7000, CTX, cuCtxGetFlags, , (unsigned *flags), GIVES(flags, current_context()->flags)) \
	X(12010, CTX, cuCtxSetFlags, , (unsigned flags), ((void)(current_context()->flags = flags), CUDA_SUCCESS)) \
	X(2000, CTX, cuCtxSynchronize, , (void), synchronize()) \
	X(4000, CTX, cuCtxEnablePeerAccess, , (CUcontext peer, unsigned flags), enable_peer(peer, flags))

#define VMM_FUNCTIONS(X) \
	X(10020, INIT, cuMemAddressReserve, , (CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, \
	  unsigned long long flags), reserve(address, size, alignment, hint, flags)) \
	X(10020, INIT, cuMemAddressFree, , (CUdeviceptr address, size_t size), free_addresses(address, size)) \
	X(10020, INIT, cuMemCreate, , (CUmemGenericAllocationHandle *handle, size_t size, \
	  const CUmemAllocationProp *prop, unsigned long long flags), create(handle, size, prop, flags)) \
	X(10020, INIT, cuMemRelease, , (CUmemGenericAllocationHandle handle), release(handle)) \
	X(10020, INIT, cuMemMap, , (CUdeviceptr address, size_t size, size_t offset, \
	  CUmemGenericAllocationHandle handle, unsigned long long flags), map(address, size, offset, handle, flags)) \
	X(10020, INIT, cuMemUnmap, , (CUdeviceptr address, size_t size), unmap(address, size)) \
	X(10020, INIT, cuMemSetAccess, , (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, \
	  size_t count), set_access(address, size, access, count)) \
	X(10020, INIT, cuMemGetAccess, , (unsigned long long *flags, const CUmemLocation *location, \
	  CUdeviceptr address), get_access(flags, location, address)) \
	X(10020, INIT, cuMemGetAllocationGranularity, , (size_t *granularity, const CUmemAllocationProp *prop, \
	  CUmemAllocationGranularity_flags option), granularity_of(granularity, prop, option)) \
	X(10020, INIT, cuMemGetAllocationPropertiesFromHandle, , (CUmemAllocationProp *prop, \
	  CUmemGenericAllocationHandle handle), \
	  block_of(handle) ? GIVES(prop, block_of(handle)->prop) : CUDA_ERROR_INVALID_VALUE) \
	X(11000, INIT, cuMemRetainAllocationHandle, , (CUmemGenericAllocationHandle *handle, void *address), \
	  handle && block_at((uint64_t)address) ? retain(block_at((uint64_t)address), handle) : CUDA_ERROR_INVALID_VALUE) \
	X(10020, INIT, cuMemExportToShareableHandle, , (void *shareable, CUmemGenericAllocationHandle handle, \
	  CUmemAllocationHandleType type, unsigned long long flags), export(shareable, handle, type, flags)) \
	X(10020, INIT, cuMemImportFromShareableHandle, , (CUmemGenericAllocationHandle *handle, void *shareable, \
	  CUmemAllocationHandleType type), import(handle, shareable, type))

#define MULTICAST_FUNCTIONS(X) \
	X(12010, INIT, cuMulticastCreate, , (CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop), \
	  create_group(handle, prop)) \
	X(12010, INIT, cuMulticastAddDevice, , (CUmemGenericAllocationHandle handle, CUdevice device), \
	  multicast_find(handle) && device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE) \
	X(12010, INIT, cuMulticastBindAddr, , (CUmemGenericAllocationHandle handle, size_t offset, \
	  CUdeviceptr address, size_t size, unsigned long long flags), \
	  bind(handle, offset, block_at(address), 0, size, flags)) \
	X(13010, INIT, cuMulticastBindAddr, _v2, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, \
	  CUdeviceptr address, size_t size, unsigned long long flags), \
	  bind(handle, offset, device_valid(device) ? block_at(address) : NULL, 0, size, flags)) \
	X(12010, INIT, cuMulticastBindMem, , (CUmemGenericAllocationHandle handle, size_t offset, \
	  CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size, unsigned long long flags), \
	  bind(handle, offset, block_of(memory), memory_offset, size, flags)) \
	X(13010, INIT, cuMulticastBindMem, _v2, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, \
	  CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size, unsigned long long flags), \
	  bind(handle, offset, device_valid(device) ? block_of(memory) : NULL, memory_offset, size, flags)) \
	X(12010, INIT, cuMulticastUnbind, , (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, \
	  size_t size), unbind(handle, device, offset, size))

#define MEMORY_FUNCTIONS(X) \
	X(3020, CTX, cuMemAlloc, _v2, (CUdeviceptr *address, size_t size), allocate(address, size)) \
	X(3020, CTX, cuMemAllocPitch, _v2, (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, \
	  unsigned element), allocate_rows(address, pitch, width, height, element)) \
	X(6000, CTX, cuMemAllocManaged, , (CUdeviceptr *address, size_t size, unsigned flags), \
	  allocate_managed(address, size, flags)) \
	X(3020, CTX, cuMemFree, _v2, (CUdeviceptr address), address ? free_when_done(address, false) : CUDA_SUCCESS) \
	X(3020, CTX, cuMemGetInfo, _v2, (size_t *available, size_t *total), info(available, total)) \
	X(3020, INIT, cuMemGetAddressRange, _v2, (CUdeviceptr *base, size_t *size, CUdeviceptr address), \
	  range_of(base, size, address)) \
	X(4000, INIT, cuPointerGetAttribute, , (void *data, CUpointer_attribute attribute, CUdeviceptr address), \
	  attribute_at(data, attribute, address)) \
	X(7000, INIT, cuPointerGetAttributes, , (unsigned count, CUpointer_attribute *attributes, void **data, \
	  CUdeviceptr address), attributes_at(count, attributes, data, address)) \
	X(6000, INIT, cuPointerSetAttribute, , (const void *value, CUpointer_attribute attribute, CUdeviceptr address), \
	  set_attribute_at(value, attribute, address)) \
	X(4010, CTX, cuIpcGetMemHandle, , (CUipcMemHandle *handle, CUdeviceptr address), ipc_export(handle, address)) \
	X(11000, CTX, cuIpcOpenMemHandle, _v2, (CUdeviceptr *address, CUipcMemHandle handle, unsigned flags), \
	  ipc_open(address, handle, flags)) \
	X(4010, CTX, cuIpcCloseMemHandle, , (CUdeviceptr address), free_when_done(address, true))

#define POOL_FUNCTIONS(X, S) \
	X(11020, INIT, cuDeviceGetDefaultMemPool, , (CUmemoryPool *pool, CUdevice device), \
	  get_pool(pool, device, pool_default)) \
	X(11020, INIT, cuDeviceGetMemPool, , (CUmemoryPool *pool, CUdevice device), \
	  get_pool(pool, device, pool_current)) \
	X(11020, INIT, cuDeviceSetMemPool, , (CUdevice device, CUmemoryPool pool), set_pool(device, pool)) \
	S(11020, INIT, cuMemAllocAsync, , (CUdeviceptr *address, size_t size, CUstream stream), \
	  allocate(address, size, NULL, MINE(stream))) \
	S(11020, INIT, cuMemAllocFromPoolAsync, , (CUdeviceptr *address, size_t size, CUmemoryPool pool, \
	  CUstream stream), allocate(address, size, &pool, MINE(stream))) \
	S(11020, INIT, cuMemFreeAsync, , (CUdeviceptr address, CUstream stream), free_later(address, MINE(stream))) \
	X(11020, INIT, cuMemPoolCreate, , (CUmemoryPool *pool, const CUmemPoolProps *props), create(pool, props)) \
	X(11020, INIT, cuMemPoolDestroy, , (CUmemoryPool pool), destroy(pool)) \
	X(11020, INIT, cuMemPoolExportToShareableHandle, , (void *shareable, CUmemoryPool pool, \
	  CUmemAllocationHandleType type, unsigned long long flags), export(shareable, pool, type, flags)) \
	X(11020, INIT, cuMemPoolImportFromShareableHandle, , (CUmemoryPool *pool, void *shareable, \
	  CUmemAllocationHandleType type, unsigned long long flags), import(pool, shareable, type, flags)) \
	X(11020, INIT, cuMemPoolTrimTo, , (CUmemoryPool pool, size_t keep), \
	  ((void)keep, pool_find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)) /* it keeps no unused memory */ \
	X(11020, INIT, cuMemPoolGetAttribute, , (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), \
	  get_attribute(pool, attribute, value)) \
	X(11020, INIT, cuMemPoolSetAttribute, , (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), \
	  set_attribute(pool, attribute, value))

#define HOST_FUNCTIONS(X) \
	X(2020, CTX, cuMemHostAlloc, , (void **pointer, size_t size, unsigned flags), allocate(pointer, size, flags)) \
	X(3020, CTX, cuMemAllocHost, _v2, (void **pointer, size_t size), allocate(pointer, size, 0)) \
	X(2000, CTX, cuMemFreeHost, , (void *pointer), forget(pointer, false, CUDA_ERROR_INVALID_VALUE)) \
	X(6050, CTX, cuMemHostRegister, _v2, (void *pointer, size_t size, unsigned flags), \
	  register_range(pointer, size, flags)) \
	X(4000, CTX, cuMemHostUnregister, , (void *pointer), \
	  forget(pointer, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)) \
	X(2030, CTX, cuMemHostGetFlags, , (unsigned *flags, void *pointer), HOST_GIVES(pointer, flags, \
	  host_range_at((uint64_t)pointer)->flags | CU_MEMHOSTALLOC_DEVICEMAP)) /* unified addressing maps all of it */ \
	X(3020, CTX, cuMemHostGetDevicePointer, _v2, (CUdeviceptr *address, void *pointer, unsigned flags), \
	  flags ? CUDA_ERROR_INVALID_VALUE : HOST_GIVES(pointer, address, (CUdeviceptr)pointer))

#define COPY_FUNCTIONS(X, T, S) \
	T(4000, CTX, cuMemcpy, , (CUdeviceptr target, CUdeviceptr source, size_t size), \
	  now(copy(target, source, size), ANY_DIRECTION, own)) \
	S(4000, INIT, cuMemcpyAsync, , (CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream), \
	  later(copy(target, source, size), ANY_DIRECTION, MINE(stream))) \
	T(3020, CTX, cuMemcpyHtoD, _v2, (CUdeviceptr target, const void *source, size_t size), \
	  now(copy(target, (uint64_t)source, size), TO_DEVICE, own)) \
	T(3020, CTX, cuMemcpyDtoH, _v2, (void *target, CUdeviceptr source, size_t size), \
	  now(copy((uint64_t)target, source, size), FROM_DEVICE, own)) \
	T(3020, CTX, cuMemcpyDtoD, _v2, (CUdeviceptr target, CUdeviceptr source, size_t size), \
	  now(copy(target, source, size), ON_DEVICE, own)) \
	S(3020, INIT, cuMemcpyHtoDAsync, _v2, (CUdeviceptr target, const void *source, size_t size, CUstream stream), \
	  later(copy(target, (uint64_t)source, size), TO_DEVICE, MINE(stream))) \
	S(3020, INIT, cuMemcpyDtoHAsync, _v2, (void *target, CUdeviceptr source, size_t size, CUstream stream), \
	  later(copy((uint64_t)target, source, size), FROM_DEVICE, MINE(stream))) \
	S(3020, INIT, cuMemcpyDtoDAsync, _v2, (CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream), \
	  later(copy(target, source, size), ON_DEVICE, MINE(stream))) \
	T(4000, CTX, cuMemcpyPeer, , (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, \
	  CUcontext source_context, size_t size), \
	  now(copy_peer(target, target_context, source, source_context, size), ON_DEVICE, own)) \
	S(4000, INIT, cuMemcpyPeerAsync, , (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, \
	  CUcontext source_context, size_t size, CUstream stream), \
	  later(copy_peer(target, target_context, source, source_context, size), ON_DEVICE, MINE(stream))) \
	X(3020, CTX, cuMemcpy2D, _v2, (const CUDA_MEMCPY2D *copy), now(copy_2d(copy), direction_2d(copy), own)) \
	T(3020, CTX, cuMemsetD8, _v2, (CUdeviceptr target, unsigned char value, size_t count), \
	  now(fill(target, value, 1, count), ANY_DIRECTION, own)) \
	T(3020, CTX, cuMemsetD32, _v2, (CUdeviceptr target, unsigned value, size_t count), \
	  now(fill(target, value, 4, count), ANY_DIRECTION, own)) \
	S(3020, INIT, cuMemsetD8Async, , (CUdeviceptr target, unsigned char value, size_t count, CUstream stream), \
	  later(fill(target, value, 1, count), ANY_DIRECTION, MINE(stream))) \
	S(3020, INIT, cuMemsetD32Async, , (CUdeviceptr target, unsigned value, size_t count, CUstream stream), \
	  later(fill(target, value, 4, count), ANY_DIRECTION, MINE(stream)))

#define STREAM_FUNCTIONS(X, S) \
	X(2000, CTX, cuStreamCreate, , (CUstream *stream, unsigned flags), create(stream, flags)) \
	X(5050, CTX, cuStreamCreateWithPriority, , (CUstream *stream, unsigned flags, int priority), \
	  ((void)priority, create(stream, flags))) /* all run in the order of issue */ \
	X(4000, INIT, cuStreamDestroy, _v2, (CUstream stream), destroy(stream)) \
	S(2000, INIT, cuStreamSynchronize, , (CUstream stream), stream_wait(MINE(stream))) \
	S(2000, INIT, cuStreamQuery, , (CUstream stream), query(MINE(stream))) \
	S(12000, INIT, cuStreamGetId, , (CUstream stream, unsigned long long *id), id_of(MINE(stream), id)) \
	X(9020, INIT, cuStreamGetCtx, , (CUstream stream, CUcontext *context), context_of(stream, context)) \
	S(10000, INIT, cuLaunchHostFunc, , (CUstream stream, CUhostFn function, void *data), \
	  launch_host(MINE(stream), function, data))

#define EVENT_FUNCTIONS(X, S) \
	X(2000, CTX, cuEventCreate, , (CUevent *event, unsigned flags), create(event, flags)) \
	S(2000, INIT, cuEventRecord, , (CUevent event, CUstream stream), record(event, MINE(stream))) \
	X(12050, INIT, cuCtxRecordEvent, , (CUcontext context, CUevent event), record_context(context, event)) \
	X(2000, INIT, cuEventQuery, , (CUevent event), query(event)) \
	X(2000, INIT, cuEventSynchronize, , (CUevent event), synchronize(event)) \
	S(3020, INIT, cuStreamWaitEvent, , (CUstream stream, CUevent event, unsigned flags), \
	  wait(MINE(stream), event, flags)) \
	X(2000, INIT, cuEventElapsedTime, , (float *milliseconds, CUevent start, CUevent end), \
	  elapsed(milliseconds, start, end)) \
	X(12080, INIT, cuEventElapsedTime, _v2, (float *milliseconds, CUevent start, CUevent end), \
	  elapsed(milliseconds, start, end)) \
	X(4000, INIT, cuEventDestroy, _v2, (CUevent event), destroy(event))

#define LIBRARY_FUNCTIONS(X, S) \
	X(12000, INIT, cuLibraryLoadData, , (CUlibrary *library, const void *image, void *jit_options, \
	  void **jit_values, unsigned jit_count, void *options, void **values, unsigned count), \
	  load(library, image, (jit_count && (!jit_options || !jit_values)) || (count && (!options || !values)))) \
	X(12000, INIT, cuLibraryGetKernel, , (CUkernel *kernel, CUlibrary library, const char *name), \
	  get_kernel(kernel, library, name)) \
	X(12000, CTX, cuKernelGetFunction, , (CUfunction *function, CUkernel kernel), get_function(function, kernel)) \
	S(4000, INIT, cuLaunchKernel, , (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
	  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters, \
	  void **extra), \
	  launch(&(CUlaunchConfig){grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0}, own, \
	  function, parameters, extra)) \
	S(11060, INIT, cuLaunchKernelEx, , (const CUlaunchConfig *config, CUfunction function, void **parameters, \
	  void **extra), launch(config, own, function, parameters, extra))

#define CAPTURE_FUNCTIONS(X, S) \
	S(10000, INIT, cuStreamBeginCapture, , (CUstream stream), \
	  begin(MINE(stream), NULL, CU_STREAM_CAPTURE_MODE_GLOBAL)) \
	S(10010, INIT, cuStreamBeginCapture, _v2, (CUstream stream, CUstreamCaptureMode mode), \
	  begin(MINE(stream), NULL, mode)) \
	S(12030, INIT, cuStreamBeginCaptureToGraph, , (CUstream stream, CUgraph graph, \
	  const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode), \
	  ((void)edges, begin_to_graph(MINE(stream), graph, dependencies, count, mode))) \
	S(13010, INIT, cuStreamBeginCaptureToCig, , (CUstream stream, void *params), \
	  params ? begin(MINE(stream), NULL, CU_STREAM_CAPTURE_MODE_GLOBAL) : CUDA_ERROR_INVALID_VALUE) \
	S(13010, INIT, cuStreamEndCaptureToCig, , (CUstream stream), end_to_cig(MINE(stream))) \
	S(13030, INIT, cuStreamBeginRecaptureToGraph, , (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, \
	  void *callback, void *data), ((void)callback, (void)data, begin_to_graph(MINE(stream), graph, NULL, 0, mode))) \
	S(10000, INIT, cuStreamEndCapture, , (CUstream stream, CUgraph *graph), end(MINE(stream), graph)) \
	S(10000, INIT, cuStreamIsCapturing, , (CUstream stream, CUstreamCaptureStatus *status), \
	  is_capturing(MINE(stream), status)) \
	X(10010, INIT, cuThreadExchangeStreamCaptureMode, , (CUstreamCaptureMode *mode), exchange_mode(mode))

#define GRAPH_FUNCTIONS(X, S) \
	X(10000, INIT, cuGraphCreate, , (CUgraph *graph, unsigned flags), create(graph, flags)) \
	X(11040, INIT, cuGraphInstantiateWithFlags, , (CUgraphExec *exec, CUgraph graph, unsigned long long flags), \
	  flags & ~15ull ? CUDA_ERROR_INVALID_VALUE : instantiate(exec, graph)) \
	S(10000, INIT, cuGraphLaunch, , (CUgraphExec exec, CUstream stream), launch(exec, MINE(stream))) \
	X(10000, INIT, cuGraphDestroy, , (CUgraph graph), destroy(graph, GRAPH)) \
	X(10000, INIT, cuGraphExecDestroy, , (CUgraphExec exec), destroy(exec, GRAPH_EXEC))

#define DRIVER_FUNCTIONS(X, T, S) \
	ERROR_FUNCTIONS(X) PROC_ADDRESS_FUNCTIONS(X) CHECKPOINT_FUNCTIONS(X) DEVICE_FUNCTIONS(X) CONTEXT_FUNCTIONS(X) \
	VMM_FUNCTIONS(X) MULTICAST_FUNCTIONS(X) MEMORY_FUNCTIONS(X) POOL_FUNCTIONS(X, S) HOST_FUNCTIONS(X) \
	COPY_FUNCTIONS(X, T, S) STREAM_FUNCTIONS(X, S) EVENT_FUNCTIONS(X, S) LIBRARY_FUNCTIONS(X, S) \
	CAPTURE_FUNCTIONS(X, S) GRAPH_FUNCTIONS(X, S)
#define NOTHING(...)

#define DECLARE(since, needs, name, version, parameters, ...) EXPORT CUresult name##version parameters;
#define DECLARE_PTDS(since, needs, name, version, parameters, ...) EXPORT CUresult name##version##_ptds parameters;
#define DECLARE_PTSZ(since, needs, name, version, parameters, ...) EXPORT CUresult name##version##_ptsz parameters;
DRIVER_FUNCTIONS(DECLARE, DECLARE, DECLARE)
DRIVER_FUNCTIONS(NOTHING, DECLARE_PTDS, DECLARE_PTSZ)

#endif
