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

EXPORT int cudaStreamBeginCapture(void *stream, int mode)
{
	return began(forward_cudaStreamBeginCapture(stream, mode));
}

EXPORT int cudaStreamBeginCapture_ptsz(void *stream, int mode)
{
	return began(forward_cudaStreamBeginCapture_ptsz(stream, mode));
}

EXPORT int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *dependencies,
					 const void *edges, size_t count, int mode)
{
	return began(forward_cudaStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode));
}

EXPORT int cudaStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *dependencies,
					      const void *edges, size_t count, int mode)
{
	return began(
		forward_cudaStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, edges, count, mode));
}

EXPORT int cudaStreamEndCapture(void *stream, void **graph)
{
	return ended(forward_cudaStreamEndCapture(stream, graph));
}

EXPORT int cudaStreamEndCapture_ptsz(void *stream, void **graph)
{
	return ended(forward_cudaStreamEndCapture_ptsz(stream, graph));
}
