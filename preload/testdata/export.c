/* A segment is exported as a file descriptor, with TMS_SHAREABLE=1 only: an importer reads the same memory, and keeps
 * it while the segment is paused. After a resume the segment has different memory. */
#include "host.h"

enum { SIZE = 4 << 20 };

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	bool shareable = strcmp(argv[1], "shareable") == 0;
	__typeof__(cuMemImportFromShareableHandle) *import = simulator("cuMemImportFromShareableHandle");
	__typeof__(cuMemAddressReserve) *reserve = simulator("cuMemAddressReserve");
	void *segment = kept_memory(SIZE, "t", 1);
	uint64_t handle = 0, imported = 0;
	uintptr_t address = 0;
	int fd = -1;
	if (!shareable) {
		FAILS(cuMemRetainAllocationHandle(&handle, segment), 801, "TMS_SHAREABLE=1");
		EXPECT(cudaFree(segment), 0);
		return 0;
	}
	EXPECT(cuMemRetainAllocationHandle(&handle, segment), 0);
	EXPECT(cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0), 0);
	EXPECT(cuMemRelease(handle), 0);
	EXPECT(import(&imported, (void *)(intptr_t)fd, POSIX_FD), 0);
	close(fd);
	EXPECT(reserve(&address, SIZE, 0, 0, 0), 0);
	EXPECT(cuMemMap(address, SIZE, 0, imported, 0), 0);
	EXPECT(cuMemSetAccess(address, SIZE, &readwrite, 1), 0);
	CHECK(filled((void *)address, SIZE, 1));
	EXPECT(tms_pause(NULL), 0);
	CHECK(filled((void *)address, SIZE, 1));
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(segment, SIZE, 1));
	fill(segment, SIZE, 2);
	CHECK(filled((void *)address, SIZE, 1));
	EXPECT(cuMemUnmap(address, SIZE), 0);
	EXPECT(cuMemRelease(imported), 0);
	EXPECT(cudaFree(segment), 0);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
