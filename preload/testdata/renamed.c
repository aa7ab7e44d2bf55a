/* A libcudart that auditwheel has renamed: as much of one as a test of its name needs. */
int cudaRuntimeGetVersion(int *version)
{
	*version = 12000;
	return 0;
}

int cudaMalloc(void **pointer, unsigned long size)
{
	static char memory[64];
	*pointer = memory;
	return size > sizeof memory ? 2 : 0;
}

int cudaFree(void *pointer)
{
	return pointer ? 0 : 7;
}
