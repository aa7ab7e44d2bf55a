/* Calls that do nothing, are refused, or run out of memory: each returns what is documented and changes nothing. */
#include "host.h"

int main(void)
{
	size_t before = free_bytes();
	int device_memory;
	void *a = pausable(3 * MIB, "edge", true), *b = pausable(1000, "edge", false);
	CHECK(before - free_bytes() >= 6 * MIB);
	fill(a, 3 * MIB, 7);

	/* Freeing what is not the start of a live segment. */
	EXPECT(cudaFree((char *)a + 4096), 1);
	FAILS(cudaFree((char *)b + 2 * MIB), 1, "not the start of a live");
	EXPECT(cudaFree(&device_memory), 1); /* a host address: the real cudaFree refuses it */
	EXPECT(cudaFree(NULL), 0);
	CHECK(filled(a, 3 * MIB, 7));

	/* No-ops. */
	EXPECT(tms_resume(NULL), 0);
	EXPECT(tms_resume("edge"), 0);
	PAUSE_AND_RESUME("no such tag");
	CHECK(before - free_bytes() >= 6 * MIB);
	EXPECT(tms_pause("edge"), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_pause("edge"), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(free_bytes(), before);

	/* Freeing while paused; the other segment comes back whole. */
	EXPECT(cudaFree(b), 0);
	EXPECT(cudaFree(b), 1);
	EXPECT(tms_resume("edge"), 0);
	EXPECT(tms_resume("edge"), 0);
	CHECK(filled(a, 3 * MIB, 7));
	EXPECT(cudaFree(a), 0);
	EXPECT(cudaFree(a), 1);
	EXPECT(free_bytes(), before);

	/* Sizes. */
	void *pointer = &device_memory;
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 0), 0);
	CHECK(pointer == NULL);
	EXPECT(cudaMalloc(NULL, 10), 1);
	pointer = &device_memory;
	EXPECT(cudaMalloc(&pointer, (size_t)1 << 60), 2);
	EXPECT(cudaMalloc(&pointer, SIZE_MAX), 2);
	CHECK(pointer == &device_memory);
	void *most = NULL;
	EXPECT(cudaMalloc(&most, before - 4 * MIB), 0);
	EXPECT(cudaMalloc(&pointer, 6 * MIB), 2);
	CHECK(pointer == &device_memory);
	CHECK(strstr(tms_last_error(), "out of memory"));
	EXPECT(cudaMalloc(&pointer, 4 * MIB), 0);
	EXPECT(cudaFree(pointer), 0);
	EXPECT(cudaFree(most), 0);

	/* The margin. */
	set_memory_margin_bytes(before - 8 * MIB);
	FAILS(cudaMalloc(&pointer, 10 * MIB), 2, "margin");
	EXPECT(cudaMalloc(&pointer, 8 * MIB), 0);
	EXPECT(cudaFree(pointer), 0);
	set_memory_margin_bytes(0);

	/* One kind of backup holds: the last that was turned on, in whatever order the others are turned off. */
	tms_set_enable_disk_backup(true);
	CHECK(tms_get_enable_disk_backup() && !strstr(tms_last_error(), "exclude"));
	tms_set_enable_cpu_backup(true);
	CHECK(strstr(tms_last_error(), "exclude each other: cpu backup is on now, and disk backup, which was, is off"));
	CHECK(tms_get_enable_cpu_backup() && !tms_get_enable_disk_backup());
	tms_set_enable_disk_backup(false);
	CHECK(tms_get_enable_cpu_backup());
	tms_set_enable_disk_backup(true);
	tms_set_enable_cpu_backup(false);
	CHECK(tms_get_enable_disk_backup() && !tms_get_enable_cpu_backup());
	tms_set_enable_disk_backup(false);
	CHECK(!tms_get_enable_disk_backup());
	EXPECT(tms_set_backup("peer:3"), 0);
	tms_set_enable_cpu_backup(true);
	CHECK(strstr(tms_last_error(), "cpu backup is on now, and peer backup"));
	const char *const kinds[] = {"host", "disk", "peer", "peer:0", "peer:12", "none"};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		EXPECT(tms_set_backup(kinds[i]), 0);
		CHECK(strcmp(tms_get_backup(), kinds[i]) == 0);
		CHECK(tms_get_enable_cpu_backup() == (i == 0) && tms_get_enable_disk_backup() == (i == 1));
	}
	const char *const others[] = {"", "cpu", "Host", "host ", "peer:", "peer:-1", "peer: 1", "peer:1x",
				      "peer:99999", "peer:1:2"};
	EXPECT(tms_set_backup("disk"), 0);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		EXPECT(tms_set_backup(others[i]), 1);
		CHECK(strstr(tms_last_error(), "is no kind of backup") && strcmp(tms_get_backup(), "disk") == 0);
	}
	EXPECT(tms_set_backup(NULL), 0);
	CHECK(strcmp(tms_get_backup(), "none") == 0);
	tms_set_enable_cpu_backup(true);
	tms_set_cpu_backup_backend("paper");
	CHECK(strstr(tms_last_error(), "paper"));
	EXPECT(strcmp(tms_get_cpu_backup_backend(), "pinned"), 0);
	tms_set_cpu_backup_backend("MMAP");
	EXPECT(strcmp(tms_get_cpu_backup_backend(), "mmap"), 0);

	/* The allocator for PyTorch. */
	tms_set_interesting_region(false);
	tms_set_current_tag("torch");
	pointer = tms_torch_malloc(5 * MIB, 0, NULL);
	CHECK(pointer);
	fill(pointer, 5 * MIB, 9);
	EXPECT(tms_pause("torch"), 0);
	EXPECT(free_bytes(), before);
	EXPECT(tms_resume("torch"), 0);
	CHECK(filled(pointer, 5 * MIB, 9));
	tms_torch_free(pointer, 5 * MIB, 0, NULL);
	CHECK(tms_torch_malloc(-1, 0, NULL) == NULL);
	CHECK(tms_torch_malloc((ssize_t)1 << 60, 0, NULL) == NULL);
	CHECK(tms_torch_malloc(1, 99, NULL) == NULL);
	EXPECT(free_bytes(), before);
	EXPECT(sim_stat("handles"), 0);
	return 0;
}
