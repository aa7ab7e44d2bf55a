/* Two processes that use the driver API alone, without a libcudart, share memory: by a handle of cuIpcGetMemHandle, and
 * by a descriptor. */
#include "pair.h"

int cuMemsetD8_v2(uintptr_t, unsigned char, size_t);
int cuIpcGetMemHandle(struct handle *, uintptr_t);
int cuIpcOpenMemHandle_v2(uintptr_t *, struct handle, unsigned);
int cuIpcCloseMemHandle(uintptr_t);

enum { SIZE = 4 << 20, LAZY = 1 };

static void exporter(void)
{
	struct handle handle;
	uintptr_t memory = 0;
	uint64_t made = 0;
	int fd = -1;
	tms_set_interesting_region(true);
	EXPECT(cuMemAlloc_v2(&memory, SIZE), 0);
	EXPECT(cuMemCreate(&made, SIZE, &exportable, 0), 0);
	tms_set_interesting_region(false);
	EXPECT(cuMemsetD8_v2(memory, 7, SIZE), 0);
	EXPECT(cuIpcGetMemHandle(&handle, memory), 0);
	EXPECT(cuMemExportToShareableHandle(&fd, made, POSIX_FD, 0), 0);
	tell(channel, &handle, sizeof handle);
	send_fd(fd);
	meet();
}

static void importer(void)
{
	struct handle handle;
	char byte = 0;
	uintptr_t memory = 0;
	uint64_t imported = 0;
	hear(channel, &handle, sizeof handle);
	int fd = receive_fd();
	EXPECT(cuIpcOpenMemHandle_v2(&memory, handle, LAZY), 0);
	EXPECT(cuMemcpyDtoH_v2(&byte, memory + SIZE - 1, 1), 0);
	EXPECT(byte, 7);
	EXPECT(cuIpcCloseMemHandle(memory), 0);
	EXPECT(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, POSIX_FD), 0);
	EXPECT(cuMemRelease(imported), 0);
	meet();
}

static void as_rank(void)
{
	void *context = NULL;
	EXPECT(cuInit(0), 0);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), 0);
	EXPECT(cuCtxSetCurrent(context), 0);
	rank == 0 ? exporter() : importer();
}

int main(void)
{
	in_two(as_rank, -1);
	return 0;
}
