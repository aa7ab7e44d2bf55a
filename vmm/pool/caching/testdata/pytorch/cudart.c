/* A libcudart.so.11.0 with just what PyTorch 2.0.0's libc10_cuda.so binds, for oracle.cpp: memory is
 * bare numbers, placed first fit as pool.Range does; an event is done when its stream was completed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, UNEXPECTED = 999 };
enum { SEGMENTS = 1 << 16, STREAMS = 16, ALIGNMENT = 512 };

static const uintptr_t base = 0x7f0000000000;
static size_t capacity = (size_t)1 << 40, held;
static struct {
	uintptr_t start;
	size_t size;
} segments[SEGMENTS];
static int count;

static struct {
	unsigned long recorded, completed;
	unsigned long long capture;
} streams[STREAMS];

typedef struct {
	uintptr_t stream;
	unsigned long number;
} event;

void cudart_capacity(size_t bytes) { capacity = bytes; }
void cudart_complete(uintptr_t stream) { streams[stream].completed = streams[stream].recorded; }
void cudart_capture(uintptr_t stream, unsigned long long id) { streams[stream].capture = id; }

int cudaMalloc(void **pointer, size_t size)
{
	uintptr_t start = base;
	int i = 0;

	size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	for (; i < count && segments[i].start - start < size; i++)
		start = segments[i].start + segments[i].size;
	if (count == SEGMENTS || start - base + size > capacity)
		return OUT_OF_MEMORY;
	memmove(&segments[i + 1], &segments[i], (size_t)(count - i) * sizeof *segments);
	segments[i].start = start;
	segments[i].size = size;
	count++;
	held += size;
	*pointer = (void *)start;
	return SUCCESS;
}

int cudaFree(void *pointer)
{
	for (int i = 0; i < count; i++) {
		if (segments[i].start != (uintptr_t)pointer)
			continue;
		held -= segments[i].size;
		count--;
		memmove(&segments[i], &segments[i + 1], (size_t)(count - i) * sizeof *segments);
		return SUCCESS;
	}
	return INVALID_VALUE;
}

int cudaMemGetInfo(size_t *available, size_t *total)
{
	*total = capacity;
	*available = capacity - held;
	return SUCCESS;
}

int cudaEventCreateWithFlags(event **made, unsigned flags)
{
	(void)flags;
	*made = calloc(1, sizeof **made);
	return SUCCESS;
}

int cudaEventDestroy(event *e)
{
	free(e);
	return SUCCESS;
}

int cudaEventRecord(event *e, uintptr_t stream)
{
	e->stream = stream;
	e->number = ++streams[stream].recorded;
	return SUCCESS;
}

int cudaEventQuery(event *e)
{
	return e->number <= streams[e->stream].completed ? SUCCESS : NOT_READY;
}

int cudaEventSynchronize(event *e)
{
	if (streams[e->stream].completed < e->number)
		streams[e->stream].completed = e->number;
	return SUCCESS;
}

int cudaStreamGetCaptureInfo(uintptr_t stream, int *status, unsigned long long *id)
{
	*status = streams[stream].capture != 0;
	*id = streams[stream].capture;
	return SUCCESS;
}

int cudaStreamIsCapturing(uintptr_t stream, int *status)
{
	*status = streams[stream].capture != 0;
	return SUCCESS;
}

int cudaGetDeviceCount(int *devices)
{
	*devices = 1;
	return SUCCESS;
}

int cudaGetDevice(int *device)
{
	*device = 0;
	return SUCCESS;
}

int cudaSetDevice(int device) { return device == 0 ? SUCCESS : INVALID_VALUE; }
int cudaGetLastError(void) { return SUCCESS; }
const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "error"; }
int cudaThreadExchangeStreamCaptureMode(int *mode) { return mode ? SUCCESS : INVALID_VALUE; }
int cudaDeviceSynchronize(void) { return SUCCESS; }

/* Bound by the library, but not by what the oracle does with it. */
#define UNUSED(name) int name(void) { return UNEXPECTED; }
UNUSED(cudaDeviceGetDefaultMemPool)
UNUSED(cudaDriverGetVersion)
UNUSED(cudaFreeAsync)
UNUSED(cudaIpcCloseMemHandle)
UNUSED(cudaIpcOpenMemHandle)
UNUSED(cudaMallocAsync)
UNUSED(cudaMemPoolGetAttribute)
UNUSED(cudaMemPoolSetAttribute)
UNUSED(cudaMemPoolTrimTo)
UNUSED(cudaStreamCreateWithPriority)
UNUSED(cudaStreamQuery)
UNUSED(cudaStreamSynchronize)
UNUSED(cudaStreamWaitEvent)
