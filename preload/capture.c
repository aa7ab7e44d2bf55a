/* capture is the core of knowing when nothing may synchronize: a device that waits while one of its
 * streams is being captured into a graph breaks the capture. */
#include "seam.h"
#include "_cgo_export.h"
#include "forward.h"

HIDDEN _Atomic int captures;

static int began(int code)
{
	if (code == SUCCESS)
		atomic_fetch_add(&captures, 1);
	return code;
}

/* A capture also ends by failing; frees that waited for it are made now. */
static int ended(int code)
{
	int before = atomic_load(&captures);
	while (before > 0 && !atomic_compare_exchange_weak(&captures, &before, before - 1))
		;
	if (before == 1 && atomic_load(&go_state) == GO_AWAKE) {
		sigset_t saved;
		if (go_enter(&saved) == SUCCESS) {
			tmsCaptureEnded();
			go_leave(&saved);
		}
	}
	return code;
}

#define CAPTURE(begin, begin_to_graph, end)                                                        \
	EXPORT int begin(void *stream, int mode)                                                   \
	{                                                                                          \
		return began(forward_##begin(stream, mode));                                       \
	}                                                                                          \
                                                                                                   \
	EXPORT int begin_to_graph(void *stream, void *graph, const void *dependencies,             \
				  const void *edges, size_t count, int mode)                       \
	{                                                                                          \
		return began(                                                                      \
			forward_##begin_to_graph(stream, graph, dependencies, edges, count, mode)); \
	}                                                                                          \
                                                                                                   \
	EXPORT int end(void *stream, void **graph)                                                 \
	{                                                                                          \
		return ended(forward_##end(stream, graph));                                        \
	}

CAPTURE(cudaStreamBeginCapture, cudaStreamBeginCaptureToGraph, cudaStreamEndCapture)
CAPTURE(cudaStreamBeginCapture_ptsz, cudaStreamBeginCaptureToGraph_ptsz, cudaStreamEndCapture_ptsz)
CAPTURE(cuStreamBeginCapture_v2, cuStreamBeginCaptureToGraph, cuStreamEndCapture)
CAPTURE(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCaptureToGraph_ptsz, cuStreamEndCapture_ptsz)
