/* Before memory goes, the library waits for work in contexts that the program has made itself, and on devices that may
 * read a segment. argument: free, pause, asked for by name, unseen, destroyed, lost, reaches; peer, staged, made
 * there */
#include "host.h"

int cuCtxEnablePeerAccess(void *, unsigned);
int cuCtxSynchronize(void);
int cuMemcpyPeerAsync(uintptr_t, void *, uintptr_t, void *, size_t, void *);
int cuMemsetD8Async(uintptr_t, unsigned char, size_t, void *);
int cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, void *);
enum { NON_BLOCKING = 1, SIZE = 8 << 20 };

static uintptr_t in_region(int expected)
{
	uintptr_t address = 0;
	IN_REGION(EXPECT(cuMemAlloc_v2(&address, SIZE), expected));
	return address;
}

static void nap(void *unused)
{
	(void)unused;
	usleep(50000);
}

static void *own_context(void)
{
	void *context = NULL;
	EXPECT(cuInit(0), 0);
	EXPECT(cuCtxCreate_v2(&context, 0, 0), 0);
	return context;
}

/* Gives a stream of the current context work on the memory, which begins in 50 ms. */
static void busy(uintptr_t address)
{
	void *stream = NULL;
	EXPECT(cuStreamCreate(&stream, NON_BLOCKING), 0);
	EXPECT(cudaLaunchHostFunc(stream, nap, NULL), 0);
	EXPECT(cuMemsetD8Async(address, 1, SIZE, stream), 0);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "free")) {
		own_context();
		uintptr_t address = in_region(0);
		busy(address);
		EXPECT(cuMemFree_v2(address), 0);
		EXPECT(cuCtxSynchronize(), 0);
	} else if (!strcmp(what, "pause")) {
		void *mine = own_context();
		uintptr_t address = in_region(0);
		busy(address);
		/* With another context current, and in a thread that has none. */
		EXPECT(cuCtxSetCurrent(NULL), 0);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(cuCtxSetCurrent(mine), 0);
		EXPECT(cuCtxSynchronize(), 0);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(cuMemFree_v2(address), 0);
	} else if (!strcmp(what, "asked for by name")) {
		void *context = NULL, *create = NULL;
		EXPECT(cuInit(0), 0);
		EXPECT(cuGetProcAddress_v2("cuCtxCreate", &create, 11030, 0, NULL), 0);
		CHECK(create == (void *)cuCtxCreate_v2);
		EXPECT(((int (*)(void **, unsigned, int))create)(&context, 0, 0), 0);
		busy(in_region(0));
		EXPECT(tms_pause(NULL), 0);
		EXPECT(cuCtxSynchronize(), 0);
	} else if (!strcmp(what, "unseen")) {
		/* Made by a function that only the driver's own library has, so that our library does not know of
		 * it. */
		void *context = NULL;
		EXPECT(cuInit(0), 0);
		EXPECT(((int (*)(void **, unsigned, int))simulator("cuCtxCreate_v2"))(&context, 0, 0), 0);
		in_region(801);
		CHECK(strstr(tms_last_error(), "primary context"));
		uintptr_t plain = 0;
		EXPECT(cuMemAlloc_v2(&plain, SIZE), 0);
		EXPECT(cuMemFree_v2(plain), 0);
	} else if (!strcmp(what, "destroyed")) {
		void *first = own_context();
		uintptr_t address = in_region(0);
		uintptr_t small = 0, stays = 0;
		IN_REGION(EXPECT(cuMemAlloc_v2(&small, 1000), 0));
		busy(address);
		void *second = own_context();
		IN_REGION(EXPECT(cuMemAlloc_v2(&stays, 1000), 0));
		EXPECT(cuCtxDestroy_v2(first), 0); /* which frees what was allocated there, when its work is done */
		EXPECT(sim_stat("handles"), 1);
		EXPECT(cuMemFree_v2(address), 1);
		EXPECT(cuMemFree_v2(stays), 0);
		EXPECT(cuCtxDestroy_v2(second), 0);
		for (int i = 0; i < 3000; i++) /* entries are reused */
			EXPECT(cuCtxDestroy_v2(own_context()), 0);
		PAUSE_AND_RESUME(NULL);
		own_context();
		EXPECT(sim_stat("handles"), 0);
	} else if (!strcmp(what, "reaches")) {
		/* A context of the program's on another device reaches memory that exists, and memory that is made
		 * later. */
		void *first = pausable(SIZE, "t", true), *later, *here = NULL, *there = NULL;
		EXPECT(cuDevicePrimaryCtxRetain(&here, 0), 0);
		EXPECT(cuCtxCreate_v2(&there, 0, 1), 0);
		EXPECT(cuCtxEnablePeerAccess(here, 0), 0);
		EXPECT(cuCtxSetCurrent(here), 0);
		later = pausable(SIZE, "t", true);
		for (int round = 0; round < 2; round++) {
			EXPECT(cuCtxSetCurrent(there), 0);
			EXPECT(cuMemsetD8Async((uintptr_t)first, 1, SIZE, NULL), 0);
			EXPECT(cuMemsetD8Async((uintptr_t)later, 1, SIZE, NULL), 0);
			EXPECT(cuCtxSynchronize(), 0);
			PAUSE_AND_RESUME("t");
		}
	} else if (!strcmp(what, "lost")) {
		/* A fault in another device's context does not concern memory here. */
		void *address = pausable(SIZE, "t", true), *there = NULL;
		fill(address, SIZE, 5);
		EXPECT(cuCtxCreate_v2(&there, 0, 1), 0);
		uintptr_t gone = in_region(0);
		busy(gone);
		EXPECT(((int (*)(uintptr_t, size_t))simulator("cuMemUnmap"))(gone, SIZE), 0);
		EXPECT(cuCtxSynchronize(), 700);
		EXPECT(cuCtxSetCurrent(NULL), 0);
		PAUSE_AND_RESUME("t");
		CHECK(filled(address, SIZE, 5));
		EXPECT(cudaFree(address), 0);
	} else {
		/* A copy on a stream of device 1 reads memory of device 0. */
		bool made = !strcmp(what, "made there");
		void *source = pausable(SIZE, "t", true), *target = NULL, *stream = NULL, *here = NULL, *there = NULL;
		fill(source, SIZE, 5);
		EXPECT(cuDevicePrimaryCtxRetain(&here, 0), 0);
		if (made)
			EXPECT(cuCtxCreate_v2(&there, 0, 1), 0);
		else
			EXPECT(cudaSetDevice(1), 0);
		EXPECT(cuMemAlloc_v2((uintptr_t *)&target, SIZE), 0);
		EXPECT(cuStreamCreate(&stream, NON_BLOCKING), 0);
		for (int round = 0; round < 2; round++) {
			memset(target, 0, SIZE);
			EXPECT(cudaLaunchHostFunc(stream, nap, NULL), 0);
			if (made)
				EXPECT(cuMemcpyPeerAsync((uintptr_t)target, there, (uintptr_t)source, here, SIZE, stream), 0);
			else if (!strcmp(what, "staged"))
				EXPECT(cudaMemcpyPeerAsync(target, 1, source, 0, SIZE, stream), 0);
			else
				EXPECT(cudaMemcpyAsync(target, source, SIZE, 3, stream), 0);
			EXPECT(cuCtxSetCurrent(here), 0);
			if (round == 0) {
				PAUSE_AND_RESUME("t");
			} else {
				EXPECT(cudaFree(source), 0);
			}
			EXPECT(cuStreamSynchronize(stream), 0);
			CHECK(filled(target, SIZE, 5));
			if (made)
				EXPECT(cuCtxSetCurrent(there), 0);
			else
				EXPECT(cudaSetDevice(1), 0);
		}
	}
	return 0;
}
