/* A libcudart that auditwheel has renamed: as much of one as a test of its name, its last error and its resets needs. */
int cudaResets;
static int last;

int cudaDeviceReset(void)
{
	cudaResets++;
	return 0;
}

int cudaLaunchKernel(void)
{
	return last = 98;
}

int cudaPeekAtLastError(void)
{
	return last;
}

int cudaGetLastError(void)
{
	int was = last;
	last = 0;
	return was;
}

int cudaRuntimeGetVersion(int *version)
{
	*version = 12000;
	return 0;
}

int cudaMalloc(void **pointer, unsigned long size)
{
	static char memory[64];
	*pointer = memory;
	if (size > sizeof memory)
		last = 2;
	return size > sizeof memory ? 2 : 0;
}

int cudaFree(void *pointer)
{
	return pointer ? 0 : 7;
}
