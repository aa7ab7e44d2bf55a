// Finding the driver and a context for the calling thread, both at first use.
#include <dlfcn.h>
#include <pthread.h>

#include "runtime.h"

enum { MAX_DEVICES = 16 };

struct driver cu;
static cudaError_t loaded;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primary[MAX_DEVICES]; // retained by this library
_Thread_local int chosen __attribute__((tls_model("initial-exec")));

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	loaded = library ? cudaSuccess : cudaErrorInsufficientDriver;
#define X(since, needs, name, version, ...) \
	if (library && !(cu.name##version = dlsym(library, #name #version))) \
		loaded = cudaErrorInsufficientDriver;
	DRIVER_FUNCTIONS(X, X, X)
#undef X
}

// In a forked child, a thread that does not exist there may hold the lock.
static void in_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

cudaError_t driver_load(void)
{
	pthread_once(&load_once, load);
	return loaded;
}

cudaError_t driver_start(void)
{
	cudaError_t error = driver_load();
	return error != cudaSuccess ? error : (cudaError_t)cu.cuInit(0);
}

cudaError_t device_primary(int device, CUcontext *context)
{
	if (device < 0 || device >= MAX_DEVICES)
		return cudaErrorInvalidDevice;
	pthread_mutex_lock(&lock);
	int active = 0;
	unsigned flags;
	CUresult error = CUDA_SUCCESS;
	if (primary[device])
		error = cu.cuDevicePrimaryCtxGetState(device, &flags, &active);
	if (error == CUDA_SUCCESS && !active)
		error = cu.cuDevicePrimaryCtxRetain(&primary[device], device);
	*context = primary[device];
	pthread_mutex_unlock(&lock);
	return (cudaError_t)error;
}

void device_forget(int device)
{
	pthread_mutex_lock(&lock);
	primary[device] = NULL;
	pthread_mutex_unlock(&lock);
}

static cudaError_t enter(int device)
{
	CUcontext context;
	cudaError_t error = device_primary(device, &context);
	return error != cudaSuccess ? error : (cudaError_t)cu.cuCtxSetCurrent(context);
}

cudaError_t device_bind(int device)
{
	cudaError_t error = enter(device);
	if (error == cudaErrorDeviceUninitialized) { // the handle is from before a reset of the simulator
		device_forget(device);
		error = enter(device);
	}
	if (error == cudaSuccess)
		chosen = device;
	return error;
}

cudaError_t ready(void)
{
	cudaError_t error = driver_load();
	if (error != cudaSuccess)
		return error;
	CUdevice device;
	CUresult state = cu.cuCtxGetDevice(&device);
	if (state == CUDA_ERROR_NOT_INITIALIZED) {
		error = driver_start();
		if (error != cudaSuccess)
			return error;
		state = cu.cuCtxGetDevice(&device);
	}
	if (state == CUDA_ERROR_INVALID_CONTEXT || state == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return device_bind(chosen);
	return (cudaError_t)state;
}
