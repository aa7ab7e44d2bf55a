/* A caching allocator like PyTorch's with expandable_segments:True: it looks up the driver's functions for virtual
 * memory by name, reserves addresses for a whole device, and maps chunks there as it needs them. */
#include "mapping.h"

enum { FABRIC = 8 };
#define CHUNK (4 * MIB)

int cudaPointerGetAttributes(void *, const void *);

static void *by_name(const char *name)
{
	void *f = NULL;
	int status = -1;
	EXPECT(cudaGetDriverEntryPoint(name, &f, 0, &status), 0);
	EXPECT(status, 0);
	CHECK(f);
	return f;
}

static void *by_address(const char *name)
{
	int (*look)(const char *, void **, int, uint64_t, int *) = (__typeof__(look))by_version("cuGetProcAddress");
	void *f = NULL;
	EXPECT(look(name, &f, 12000, 0, NULL), 0);
	CHECK(f);
	return f;
}

static void *by_old_address(const char *name)
{
	int (*look)(const char *, void **, int, uint64_t) = NULL;
	EXPECT(cudaGetDriverEntryPointByVersion("cuGetProcAddress", (void **)&look, 11030, 0, NULL), 0);
	void *f = NULL;
	EXPECT(look(name, &f, 11030, 0), 0);
	CHECK(f);
	return f;
}

enum { CHUNKS = 12 };
struct segment {
	uintptr_t base;
	uint64_t handles[CHUNKS];
};

static void reserve(struct segment *s)
{
	*s = (struct segment){0};
	EXPECT(cu.cuMemAddressReserve(&s->base, CHUNKS * CHUNK, 0, 0, 0), 0);
}

static void *at(struct segment *s, int chunk)
{
	return (void *)(s->base + chunk * CHUNK);
}

static int map(struct segment *s, int from, int to)
{
	for (int i = from; i < to; i++) {
		struct prop prop = {.type = 1, .handle_types = FABRIC, .location_type = 1};
		int code = cu.cuMemCreate(&s->handles[i], CHUNK, &prop, 0);
		EXPECT(code == 2 ? 801 : code, 801); /* no fabric here, by the driver's own answer */
		prop.handle_types = POSIX_FD;
		code = cu.cuMemCreate(&s->handles[i], CHUNK, &prop, 0);
		if (code != 0) {
			while (i-- > from)
				EXPECT(cu.cuMemRelease(s->handles[i]), 0);
			return code;
		}
	}
	for (int i = from; i < to; i++)
		EXPECT(cu.cuMemMap(s->base + i * CHUNK, CHUNK, 0, s->handles[i], 0), 0);
	EXPECT(cu.cuMemSetAccess(s->base + from * CHUNK, (to - from) * CHUNK, NULL, 0), 1);
	EXPECT(cu.cuMemSetAccess(s->base + from * CHUNK, (to - from) * CHUNK, &readwrite, 1), 0);
	return 0;
}

static void unmap(struct segment *s, int from, int to)
{
	EXPECT(cudaDeviceSynchronize(), 0);
	for (int i = from; i < to; i++) {
		EXPECT(cu.cuMemUnmap(s->base + i * CHUNK, CHUNK), 0);
		EXPECT(cu.cuMemRelease(s->handles[i]), 0);
	}
}

static void discard(struct segment *s)
{
	EXPECT(cu.cuMemAddressFree(s->base, CHUNKS * CHUNK), 0);
}

static void outside_regions(void)
{
	struct segment s;
	reserve(&s);
	EXPECT(map(&s, 0, 2), 0);
	fill(at(&s, 0), 2 * CHUNK, 1);
	uint64_t handles = sim_stat("handles");
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), handles);
	CHECK(filled(at(&s, 0), 2 * CHUNK, 1));
	EXPECT(tms_resume(NULL), 0);
	unmap(&s, 0, 2);
	discard(&s);
}

static void pause_and_resume(bool backup)
{
	struct segment s;
	size_t before = free_bytes();
	reserve(&s);
	enter("expandable", backup);
	EXPECT(map(&s, 0, 4), 0);
	leave();
	fill(at(&s, 0), 4 * CHUNK, 2); /* across chunks */
	EXPECT(before - free_bytes(), 4 * CHUNK);
	for (int cycle = 0; cycle < 3; cycle++) {
		EXPECT(tms_pause("expandable"), 0);
		EXPECT(free_bytes(), before);
		struct {
			int type, device;
			void *device_pointer, *host_pointer;
			long reserved[8];
		} attributes = {.type = -1};
		EXPECT(cudaPointerGetAttributes(&attributes, (char *)at(&s, 1) + 5), 0);
		EXPECT(attributes.type, 2);
		EXPECT(tms_resume("expandable"), 0);
		EXPECT(before - free_bytes(), 4 * CHUNK);
		if (backup)
			CHECK(filled(at(&s, 0), 4 * CHUNK, 2));
		else
			fill(at(&s, 0), 4 * CHUNK, 2);
	}
	/* It grows after a resume, and its cache is emptied while it is paused. */
	enter("expandable", backup);
	EXPECT(map(&s, 4, 6), 0);
	leave();
	fill(at(&s, 3), 3 * CHUNK, 3);
	EXPECT(tms_pause("expandable"), 0);
	unmap(&s, 2, 4);
	if (backup)
		CHECK(tms_get_cpu_backup_pointer(at(&s, 4), CHUNK));
	EXPECT(cu.cuMemUnmap(s.base + 2 * CHUNK, CHUNK), 1);
	EXPECT(cu.cuMemAddressFree(s.base, CHUNKS * CHUNK), 1);
	EXPECT(tms_resume("expandable"), 0);
	if (backup) {
		CHECK(filled(at(&s, 0), 2 * CHUNK, 2));
		enter("expandable", true);
		EXPECT(map(&s, 2, 4), 0);
		leave();
		PAUSE_AND_RESUME("expandable");
		CHECK(filled(at(&s, 0), 2 * CHUNK, 2));
		unmap(&s, 2, 4);
	}
	unmap(&s, 0, 2);
	EXPECT(tms_pause("expandable"), 0);
	unmap(&s, 4, 6);
	discard(&s);
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume("expandable"), 0);
}

/* While a graph is being captured memory can still be mapped. */
static void while_captured(void)
{
	struct segment s;
	void *stream, *graph;
	reserve(&s);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	enter("graph", false);
	EXPECT(map(&s, 0, 1), 0);
	leave();
	EXPECT(cudaMemsetAsync(at(&s, 0), 1, CHUNK, stream), 0);
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 0);
	unmap(&s, 0, 1);
	discard(&s);
}

/* Memory that other processes may have mapped stays, because a resume makes new memory, which they would not have. */
static void shared_with_others(void)
{
	struct segment s;
	reserve(&s);
	enter("shared", true);
	EXPECT(map(&s, 0, 2), 0);
	leave();
	fill(at(&s, 0), 2 * CHUNK, 4);
	struct prop prop = {0};
	EXPECT(cu.cuMemGetAllocationPropertiesFromHandle(&prop, s.handles[0]), 0);
	EXPECT(prop.handle_types, POSIX_FD);
	uint64_t again = 0;
	EXPECT(cu.cuMemRetainAllocationHandle(&again, (char *)at(&s, 0) + 100), 0);
	EXPECT(again == s.handles[0], true);
	EXPECT(cu.cuMemRelease(again), 0);

	int fd = -1;
	EXPECT(cu.cuMemExportToShareableHandle(&fd, s.handles[0], POSIX_FD, 0), 0);
	CHECK(fcntl(fd, F_GETFD) >= 0);
	EXPECT(tms_pause("shared"), 0);
	EXPECT(sim_stat("handles"), 1);
	FAILS(cu.cuMemExportToShareableHandle(&fd, s.handles[1], POSIX_FD, 0), 801, "resume");
	CHECK(filled(at(&s, 0), CHUNK, 4));
	/* Here the importer is this process: also after the resume it reads what the exporter writes. */
	uint64_t imported = 0;
	EXPECT(cu.cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, POSIX_FD), 0);
	EXPECT(tms_resume("shared"), 0);
	EXPECT(cu.cuMemMap(s.base + 2 * CHUNK, CHUNK, 0, imported, 0), 0);
	EXPECT(cu.cuMemSetAccess(s.base + 2 * CHUNK, CHUNK, &readwrite, 1), 0);
	CHECK(filled(at(&s, 0), 2 * CHUNK, 4));
	fill(at(&s, 0), CHUNK, 5);
	CHECK(filled(at(&s, 2), CHUNK, 5));
	EXPECT(cu.cuMemUnmap(s.base + 2 * CHUNK, CHUNK), 0);
	EXPECT(cu.cuMemRelease(imported), 0);
	close(fd);
	unmap(&s, 0, 2);
	discard(&s);
	EXPECT(sim_stat("handles"), 0);
}

static void out_of_memory(void)
{
	struct segment s;
	void *filler;
	reserve(&s);
	EXPECT(cudaMalloc(&filler, free_bytes() - 3 * CHUNK), 0);
	enter("short", true);
	EXPECT(map(&s, 0, 4), 2);
	EXPECT(map(&s, 0, 3), 0);
	fill(at(&s, 0), 3 * CHUNK, 6);
	EXPECT(tms_pause("short"), 0);
	void *taken;
	leave();
	EXPECT(cudaMalloc(&taken, CHUNK), 0);
	EXPECT(tms_resume("short"), 2);
	EXPECT(cudaFree(taken), 0);
	EXPECT(tms_resume("short"), 0);
	CHECK(filled(at(&s, 0), 3 * CHUNK, 6));
	/* Memory freed beside live neighbours in a shared extent is released when the program's own memory needs it. */
	unmap(&s, 0, 3);
	EXPECT(cudaFree(filler), 0);
	void *first = pausable(2 * CHUNK, "beside", false), *second = pausable(2 * CHUNK, "beside", false);
	PAUSE_AND_RESUME("beside");
	EXPECT(sim_stat("handles"), 1);
	EXPECT(cudaFree(second), 0);
	size_t slack = 2 * CHUNK;
	EXPECT(cudaMalloc(&filler, free_bytes() - slack), 0);
	EXPECT(map(&s, 0, 1), 0);
	enter("short", false);
	EXPECT(map(&s, 1, 2), 0);
	leave();
	unmap(&s, 0, 2);
	discard(&s);
	EXPECT(cudaFree(filler), 0);
	EXPECT(cudaFree(first), 0);
}

static void *expand(void *tag)
{
	struct segment s;
	reserve(&s);
	enter(tag, true);
	for (int round = 0; round < 30; round++) {
		EXPECT(map(&s, 0, 3), 0);
		unmap(&s, 1, 3);
		EXPECT(map(&s, 1, 2), 0);
		unmap(&s, 0, 2);
	}
	leave();
	discard(&s);
	return NULL;
}

static void threads_at_once(void)
{
	static const char *const tags[] = {"a", "b", "c"};
	pthread_t expanding[3];
	for (int i = 0; i < 3; i++)
		start(&expanding[i], expand, (void *)tags[i]);
	for (int round = 0; round < 60; round++) {
		PAUSE_AND_RESUME(tags[round % 3]);
	}
	join_all(expanding, 3);
	EXPECT(sim_stat("handles"), 0);
}

int main(void)
{
	void *none = (void *)1;
	int status = -1;
	EXPECT(cudaFree(NULL), 0);
	EXPECT(cudaGetDriverEntryPointByVersion("cuMemCreate", &none, 4000, 0, &status), 0); /* too old */
	CHECK(!none && status != 0);
	static void *(*const ways[])(const char *) = {by_version, by_name, by_address, by_old_address};
	for (int i = 0; i < 4; i++) {
		fetch(ways[i]);
		if (i == 0)
			outside_regions(); /* before anything was made in a region, */
		pause_and_resume(true);
		pause_and_resume(false);
		outside_regions(); /* and after */
	}
	while_captured();
	shared_with_others();
	out_of_memory();
	threads_at_once();
	return 0;
}
