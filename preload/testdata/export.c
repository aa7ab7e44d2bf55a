/* A segment is exported as a file descriptor, with TMS_SHAREABLE=1 only: an importer reads the same memory, and keeps
 * it while the segment is paused. After a resume the segment has different memory. */
#include "host.h"

typedef struct {
	int type, id;
} location;
typedef struct {
	location where;
	int flags;
} access_desc;

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	bool shareable = strcmp(argv[1], "shareable") == 0;
	int (*retain)(uint64_t *, void *) = (int (*)(uint64_t *, void *))dlsym(RTLD_DEFAULT, "cuMemRetainAllocationHandle");
	int (*release)(uint64_t) = (int (*)(uint64_t))dlsym(RTLD_DEFAULT, "cuMemRelease");
	int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long) =
		(int (*)(uint64_t, size_t, size_t, uint64_t, unsigned long long))dlsym(RTLD_DEFAULT, "cuMemMap");
	int (*allow)(uint64_t, size_t, const access_desc *, size_t) =
		(int (*)(uint64_t, size_t, const access_desc *, size_t))dlsym(RTLD_DEFAULT, "cuMemSetAccess");
	int (*unmap)(uint64_t, size_t) = (int (*)(uint64_t, size_t))dlsym(RTLD_DEFAULT, "cuMemUnmap");
	int (*export)(void *, uint64_t, int, unsigned long long) =
		(int (*)(void *, uint64_t, int, unsigned long long))dlsym(RTLD_DEFAULT, "cuMemExportToShareableHandle");
	int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long) =
		(int (*)(uint64_t *, size_t, size_t, uint64_t, unsigned long long))simulator("cuMemAddressReserve");
	int (*import)(uint64_t *, void *, int) =
		(int (*)(uint64_t *, void *, int))simulator("cuMemImportFromShareableHandle");
	enum { FILE_DESCRIPTOR = 1, SIZE = 4 << 20 };
	void *segment = pausable(SIZE, "t", true);
	fill(segment, SIZE, 1);
	uint64_t handle = 0, imported = 0, address = 0;
	int fd = -1;
	if (!shareable) {
		EXPECT(retain(&handle, segment), 801);
		CHECK(strstr(tms_last_error(), "TMS_SHAREABLE=1"));
		EXPECT(cudaFree(segment), 0);
		return 0;
	}
	EXPECT(retain(&handle, segment), 0);
	EXPECT(export(&fd, handle, FILE_DESCRIPTOR, 0), 0);
	EXPECT(release(handle), 0);
	EXPECT(import(&imported, (void *)(intptr_t)fd, FILE_DESCRIPTOR), 0);
	close(fd);
	EXPECT(reserve(&address, SIZE, 0, 0, 0), 0);
	EXPECT(map(address, SIZE, 0, imported, 0), 0);
	EXPECT(allow(address, SIZE, &(access_desc){{1, 0}, 3}, 1), 0);
	CHECK(filled((void *)address, SIZE, 1));
	EXPECT(tms_pause(NULL), 0);
	CHECK(filled((void *)address, SIZE, 1));
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(segment, SIZE, 1));
	fill(segment, SIZE, 2);
	CHECK(filled((void *)address, SIZE, 1));
	EXPECT(unmap(address, SIZE), 0);
	EXPECT(release(imported), 0);
	EXPECT(cudaFree(segment), 0);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
