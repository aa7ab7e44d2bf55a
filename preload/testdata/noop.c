/* A library that does nothing: what loading any library costs. */
int noop_unused(void);

int noop_unused(void)
{
	return 0;
}
