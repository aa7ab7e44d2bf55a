/* A library that does nothing, to measure what loading any library costs. */
int noop_unused(void);

int noop_unused(void)
{
	return 0;
}
