/* A library linked with a driver that is newer than the tested library. */
int cuMemcpyAsync_v2(void);

int copy(void)
{
	volatile int code = cuMemcpyAsync_v2();
	return code;
}
