/* A library that is linked with a driver newer than the library that is tested. */
int cuMemcpyAsync_v2(void);

int copy(void)
{
	volatile int code = cuMemcpyAsync_v2();
	return code;
}
