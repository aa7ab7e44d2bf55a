/* forward is the core of passing through: one pointer per CUDA function of the host process. */
#ifndef TMS_FORWARD_H
#define TMS_FORWARD_H

#include <stddef.h>

/* Returned when the process has no such CUDA function: cudaErrorSharedObjectSymbolNotFound. */
#define FORWARD_MISSING 302

/* name, parameters, arguments. Every function returns cudaError_t, passed on as int. */
#define FORWARD_FUNCTIONS(X)                                                                       \
	X(cudaMalloc, (void **pointer, size_t size), (pointer, size))                              \
	X(cudaFree, (void *pointer), (pointer))                                                    \
	X(cudaGetDevice, (int *device), (device))                                                  \
	X(cudaStreamBeginCapture, (void *stream, int mode), (stream, mode))                        \
	X(cudaStreamBeginCapture_ptsz, (void *stream, int mode), (stream, mode))                   \
	X(cudaStreamBeginCaptureToGraph,                                                           \
	  (void *stream, void *graph, const void *dependencies, const void *edges, size_t count,   \
	   int mode),                                                                              \
	  (stream, graph, dependencies, edges, count, mode))                                       \
	X(cudaStreamBeginCaptureToGraph_ptsz,                                                      \
	  (void *stream, void *graph, const void *dependencies, const void *edges, size_t count,   \
	   int mode),                                                                              \
	  (stream, graph, dependencies, edges, count, mode))                                       \
	X(cudaStreamEndCapture, (void *stream, void **graph), (stream, graph))                     \
	X(cudaStreamEndCapture_ptsz, (void *stream, void **graph), (stream, graph))

/* forward_cudaMalloc(pointer, size) and so on call the host's own function. The pointers start at
 * a stub that looks the function up; a lookup that finds nothing is made again at the next call,
 * because libcudart may still be loaded. */
#define X(name, parameters, arguments)                                                             \
	extern int(*_Atomic forward_##name) parameters __attribute__((visibility("hidden")));
FORWARD_FUNCTIONS(X)
#undef X

/* A function the next library in line, or failing that any loaded libcudart, defines; or NULL. */
void *forward_find(const char *name);

#endif
