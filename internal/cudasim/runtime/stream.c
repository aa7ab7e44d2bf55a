// Streams and events.
#include "runtime.h"

PASS(ready, cudaStreamCreateWithPriority, (cudaStream_t *stream, unsigned flags, int priority),
     cu.cuStreamCreateWithPriority(stream, flags, priority))
PASS(ready, cudaStreamCreateWithFlags, (cudaStream_t *stream, unsigned flags),
     cu.cuStreamCreate(stream, flags))
PASS(ready, cudaStreamCreate, (cudaStream_t *stream), cu.cuStreamCreate(stream, 0))
PASS(ready, cudaStreamDestroy, (cudaStream_t stream), cu.cuStreamDestroy_v2(stream))
PASS_PTSZ(ready, cudaStreamSynchronize, (cudaStream_t stream), cu.cuStreamSynchronize(stream))
PASS_PTSZ(ready, cudaStreamQuery, (cudaStream_t stream), cu.cuStreamQuery(stream))
PASS_PTSZ(ready, cudaStreamGetId, (cudaStream_t stream, unsigned long long *id), cu.cuStreamGetId(stream, id))
PASS_PTSZ(ready, cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
	  cu.cuStreamWaitEvent(stream, event, flags))
PASS_PTSZ(ready, cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void *data),
	  cu.cuLaunchHostFunc(stream, function, data))
PASS(ready, cudaEventCreateWithFlags, (cudaEvent_t *event, unsigned flags), cu.cuEventCreate(event, flags))
PASS(ready, cudaEventCreate, (cudaEvent_t *event), cu.cuEventCreate(event, 0))
PASS_PTSZ(ready, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), cu.cuEventRecord(event, stream))
PASS(ready, cudaEventQuery, (cudaEvent_t event), cu.cuEventQuery(event))
PASS(ready, cudaEventSynchronize, (cudaEvent_t event), cu.cuEventSynchronize(event))
PASS(ready, cudaEventElapsedTime, (float *milliseconds, cudaEvent_t start, cudaEvent_t end),
     cu.cuEventElapsedTime_v2(milliseconds, start, end))
PASS(ready, cudaEventDestroy, (cudaEvent_t event), cu.cuEventDestroy_v2(event))
