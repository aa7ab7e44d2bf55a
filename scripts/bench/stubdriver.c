/* A libcuda whose functions do nothing, so that what remains of a launch is the price of the gate. */
#define NOTHING(name, parameters)                                                                  \
	int name parameters;                                                                       \
	int name parameters                                                                        \
	{                                                                                          \
		return 0;                                                                          \
	}

NOTHING(cuInit, (unsigned flags __attribute__((unused))))
NOTHING(cuDevicePrimaryCtxRetain, (void **context __attribute__((unused)), int device __attribute__((unused))))
NOTHING(cuCtxSetCurrent, (void *context __attribute__((unused))))
NOTHING(cuCtxSynchronize, (void))
NOTHING(cuStreamQuery, (void *stream __attribute__((unused))))
NOTHING(cuModuleLoadData, (void **module __attribute__((unused)), const void *image __attribute__((unused))))
NOTHING(cuModuleGetFunction, (void **function __attribute__((unused)), void *module __attribute__((unused)),
			      const char *name __attribute__((unused))))

int cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
		   unsigned shared, void *stream, void **parameters, void **extra);
int cuLaunchKernel(void *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
		   unsigned shared, void *stream, void **parameters, void **extra)
{
	(void)function, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)shared, (void)stream, (void)parameters,
		(void)extra;
	return 0;
}
