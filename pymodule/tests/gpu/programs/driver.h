/* What the programs in C call of the driver; a machine may have no header of its own. */
#include <stddef.h>
#include <stdint.h>

typedef struct CUctx_st *context;
typedef struct CUstream_st *stream;
typedef uint64_t pointer;
int cuInit(unsigned flags);
int cuCtxSetCurrent(context of);
int cuCtxSynchronize(void);
int cuStreamCreate(stream *made, unsigned flags);
int cuStreamSynchronize(stream of);
int cuMemAlloc_v2(pointer *made, size_t size);
int cuMemsetD32Async(pointer to, unsigned value, size_t count, stream in);
int cuMemcpyDtoHAsync_v2(void *to, pointer from, size_t size, stream in);
int cuMemcpyDtoDAsync_v2(pointer to, pointer from, size_t size, stream in);

enum { NON_BLOCKING = 1 };
