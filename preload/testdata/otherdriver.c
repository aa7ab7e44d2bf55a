/* A driver whose lookups return other functions than its exports. It has one that is newer than the library. */
#include <stdint.h>
#include <string.h>

int cuLaunchKernel(void);
int cuMemcpyAsync(void);
int cuMemcpyAsync_v2(void);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

int cuLaunchKernel(void)
{
	return 1;
}

int cuMemcpyAsync(void)
{
	return 2;
}

int cuMemcpyAsync_v2(void)
{
	return 3;
}

/* Its code says whether all eleven words have come. */
static int another_launch(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g,
			  uintptr_t h, uintptr_t i, uintptr_t j, uintptr_t k)
{
	uintptr_t words[] = {a, b, c, d, e, f, g, h, i, j, k};
	for (uintptr_t n = 0; n < 11; n++)
		if (words[n] != n + 1)
			return 43;
	return 42;
}

static int another_copy(void)
{
	return 5;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	(void)version, (void)flags, (void)status;
	*function = NULL;
	if (!strcmp(name, "cuLaunchKernel"))
		*function = (void *)another_launch;
	else if (!strcmp(name, "cuMemcpyAsync"))
		*function = (void *)another_copy;
	return *function ? 0 : 500;
}
