/* How the oracle steers cudart.c, beside CUDA's own functions. Streams are numbers below 16. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void cudart_capacity(size_t bytes);                                /* of the device; before first use */
void cudart_complete(uintptr_t stream);                            /* its work is done */
void cudart_capture(uintptr_t stream, unsigned long long capture); /* the id of its capture, or 0 at the end */

#ifdef __cplusplus
}
#endif
