/* A crowd of threads makes its first allocations at once: the library has room for their records, or makes it. */
#include "host.h"

enum { MOST = 2000, STACK = 64 << 10 };
static pthread_barrier_t all;

static void *body(void *id)
{
	void *memory;
	pthread_barrier_wait(&all);
	EXPECT(cudaMalloc(&memory, 4096), 0);
	EXPECT(cudaMemset(memory, (int)(intptr_t)id & 127, 4096), 0);
	pthread_barrier_wait(&all);
	unsigned char last;
	EXPECT(cudaMemcpy(&last, (char *)memory + 4095, 1, 2), 0);
	EXPECT(last, (intptr_t)id & 127);
	EXPECT(cudaFree(memory), 0);
	return NULL;
}

int main(void)
{
	static pthread_t threads[MOST];
	int count = often(MOST, 600);
	pthread_attr_t attributes;
	EXPECT(pthread_attr_init(&attributes), 0);
	EXPECT(pthread_attr_setstacksize(&attributes, STACK), 0);
	EXPECT(pthread_barrier_init(&all, NULL, (unsigned)count), 0);
	for (intptr_t i = 0; i < count; i++)
		EXPECT(pthread_create(&threads[i], &attributes, body, (void *)i), 0);
	for (int i = 0; i < count; i++)
		EXPECT(pthread_join(threads[i], NULL), 0);
	return 0;
}
