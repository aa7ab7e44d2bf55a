/* reclaim is the core of out-of-memory errors that need not be: memory that was freed beside live
 * neighbours is still held, and is given back before the host hears of a shortage. */
#include "seam.h"
#include "forward.h"

HIDDEN bool reclaim_on(int device, size_t size)
{
	/* While a stream is being captured nothing may wait for the device. */
	return atomic_load(&go_state) == GO_AWAKE && atomic_load(&captures) == 0 && operation_shrink(device, size) > 0;
}

HIDDEN bool reclaim(size_t size)
{
	int device = 0;
	if (atomic_load(&go_state) != GO_AWAKE || forward_cudaGetDevice(&device) != SUCCESS ||
	    !reclaim_on(device, size))
		return false;
	/* The call that is about to succeed after all must not leave its first failure behind. */
	forward_cudaGetLastError();
	return true;
}
