// The simulated runtime's files share the driver, the calling thread's context and last error.
#ifndef CUDASIM_RUNTIME_H
#define CUDASIM_RUNTIME_H

#include "../driver/abi/api.h"
#include "types.h"

enum { RUNTIME_VERSION = CUDART_MAJOR >= 13 ? 13000 : 12090 };

struct driver {
#define X(since, needs, name, version, parameters, ...) CUresult(*name##version) parameters;
	DRIVER_FUNCTIONS(X, X, X)
#undef X
};

// The driver's functions; valid once driver_load or ready has returned cudaSuccess.
extern struct driver cu;
cudaError_t driver_load(void);	// finds libcuda.so.1
cudaError_t driver_start(void); // and initialises it
cudaError_t ready(void);	// and makes the device's primary context current if the thread has none

extern _Thread_local int chosen __attribute__((tls_model("initial-exec"))); // the device that the thread has chosen
cudaError_t device_bind(int device); // makes its primary context current
cudaError_t device_primary(int device, CUcontext *context);
void device_forget(int device);

// Remembers an error as the thread's last one, and returns it.
cudaError_t result(int code);

// Defines a function: after the first step succeeds, it evaluates an expression, which is an error code.
#define PASS(first, name, parameters, does) PASS_AFTER(, first, name, parameters, does)
#define PASS_AFTER(setting, first, name, parameters, does) \
	EXPORT cudaError_t name parameters \
	{ \
		setting; \
		cudaError_t first_ = first(); \
		return result(first_ != cudaSuccess ? (int)first_ : (int)(does)); \
	}
// The same, with one more function for the thread's own default stream in place of the legacy one.
#define PASS_PTSZ(first, name, parameters, does) \
	PASS(first, name, parameters, does) \
	PASS_AFTER(stream = stream ? stream : CU_STREAM_PER_THREAD, first, name##_ptsz, parameters, does)

#endif
