/* While a thread has the loader's lock, others need no answer of the loader's: no pause and resume of a program whose
 * thread waits at the gate in a library's constructor, or in a callback of dl_iterate_phdr, and no first call of one of
 * CUDA's functions, which the constructor waits for. Nor does a resume that finds too little memory at first, nor the
 * first allocation in a region once CUDA is in use. Called as: loader dlopen|callback|calls|region|alone LIBRARY */
#include "host.h"

#include <link.h>

int cudaGetLastError(void);
int cuMemGetAddressRange_v2(uintptr_t *, size_t *, uintptr_t);
int cuMemcpyDtoH_v2(void *, uintptr_t, size_t);
int cuStreamCreate(void **, unsigned);

static void *memory;
static const char *library, *part;
static atomic_bool inside, done;

static void *first_calls(void *unused)
{
	void *pointer = NULL, *stream = NULL;
	uintptr_t base = 0;
	size_t size = 0;
	char byte;
	EXPECT(cudaSetDevice(0), 0);
	EXPECT(cudaFree(memory), 0);
	EXPECT(cudaMallocAsync(&pointer, 4096, NULL), 0);
	EXPECT(cuMemcpyDtoH_v2(&byte, (uintptr_t)pointer, 1), 0);
	EXPECT(cuMemGetAddressRange_v2(&base, &size, (uintptr_t)pointer), 0);
	EXPECT(cuStreamCreate(&stream, 0), 0);
	EXPECT(cudaStreamDestroy(stream), 0);
	EXPECT(cudaFreeAsync(pointer, NULL), 0);
	EXPECT(cudaGetLastError(), 0);
	return unused;
}

static void *first_in_a_region(void *unused)
{
	for (int i = 0; i < 3; i++) {
		void *kept = kept_memory(MIB, "kept", 6);
		EXPECT(tms_pause(NULL), 0);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(cudaFree(kept), 0);
	}
	EXPECT(tms_serve(), 0);
	EXPECT(tms_pause_everything(30), 0);
	EXPECT(tms_resume(NULL), 0);
	return unused;
}

static void give_work(void)
{
	atomic_store(&inside, true);
	while (!atomic_load(&done))
		EXPECT(cudaMemset(memory, 1, 4096), 0);
}

void in_constructor(void)
{
	if (tms_get_interesting_region())
		on_a_thread(first_calls, NULL);
	else if (strcmp(part, "region") == 0)
		on_a_thread(first_in_a_region, NULL);
	else if (strcmp(part, "alone") == 0)
		first_in_a_region(NULL);
	else
		give_work();
}

static int callback(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)info, (void)size, (void)unused;
	give_work();
	return 1;
}

static void *opens(void *unused)
{
	CHECK(dlopen(library, RTLD_NOW));
	return unused;
}

static void *iterates(void *unused)
{
	EXPECT(dl_iterate_phdr(callback, NULL), 1);
	return unused;
}

static void *is_opened(void)
{
	pthread_t thread;
	void *kept = kept_memory(MIB, "kept", 5);
	void (*fail)(const char *, int, int) = (void (*)(const char *, int, int))simulator("cudasim_fail");
	start(&thread, opens, NULL);
	AWAIT(atomic_load(&inside));
	for (int i = 0; i < 3; i++) {
		EXPECT(tms_pause_gated(NULL, 30), 0);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(tms_pause_everything(30), 0);
		CHECK(stats_say("\"everything\":true"));
		EXPECT(tms_resume(NULL), 0);
	}
	EXPECT(tms_pause_gated(NULL, 30), 0);
	fail("cuMemCreate", 1, 2);
	EXPECT(tms_resume_within(NULL, 30), 0);
	atomic_store(&done, true);
	join(thread);
	return kept;
}

static void *is_iterated(void)
{
	pthread_t thread;
	void *kept = kept_memory(MIB, "kept", 5);
	for (int everything = 0; everything < 2; everything++) {
		EXPECT(everything ? tms_pause_everything(30) : tms_pause_gated(NULL, 30), 0);
		atomic_store(&inside, false);
		atomic_store(&done, false);
		start(&thread, iterates, NULL);
		AWAIT(atomic_load(&inside));
		EXPECT(tms_resume(NULL), 0);
		atomic_store(&done, true);
		join(thread);
	}
	return kept;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	part = argv[1], library = argv[2];
	alarm(120);
	if (strcmp(part, "alone") == 0) { /* CUDA is not in use yet */
		CHECK(dlopen(library, RTLD_NOW));
		return 0;
	}
	if (strcmp(part, "region") == 0) {
		EXPECT(cudaMalloc(&memory, 4096), 0);
		CHECK(dlopen(library, RTLD_NOW));
		return 0;
	}
	if (strcmp(argv[1], "calls") == 0) {
		EXPECT(cudaMalloc(&memory, 4096), 0);
		char byte;
		EXPECT(cuMemcpyDtoH_v2(&byte, (uintptr_t)memory, 1), 0);
		tms_set_interesting_region(true);
		CHECK(dlopen(library, RTLD_NOW));
		return 0;
	}
	memory = pausable(MIB, "worked on", false);
	CHECK(filled(strcmp(argv[1], "dlopen") == 0 ? is_opened() : is_iterated(), MIB, 5));
	return 0;
}
