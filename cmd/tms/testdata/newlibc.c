// A C library from the future, for a libtms.so that was built with it.
int from_the_future(void)
{
	return 0;
}
