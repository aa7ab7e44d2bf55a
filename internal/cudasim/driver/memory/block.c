// Physical memory: ranges of one sparse memfd per device, as many as budget.c allows. mapping.c maps them.
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process.h"
#include "memory/memory.h"

#define FILE_MOST (1ll << 60) // sparse: only touched pages exist
#define FILE_STEP (1ll << 30) // the file grows by this: what dumps the process looks at all of it (CRIU)

static bool device_open(struct device *device, uint64_t size)
{
	if (device->fd < 0) {
		int fd = memfd_create("cudasim", MFD_CLOEXEC);
		if (fd < 0)
			return false;
		device->fd = fd;
		device->file_size = 0;
		ballast_take();
	}
	uint64_t needed = (device->next_offset + size + FILE_STEP - 1) / FILE_STEP * FILE_STEP;
	if (needed > device->file_size) {
		if (ftruncate(device->fd, (off_t)needed))
			return false;
		device->file_size = needed;
	}
	return true;
}

CUresult block_new(int index, uint64_t size, struct block **block)
{
	struct device *device = &memory.devices[index];
	if (size > (uint64_t)FILE_MOST - device->next_offset)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!device_open(device, size)) {
		sim_complain("no memory file can be made or grow by %llu bytes: %s", (unsigned long long)size, strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*block = calloc(1, sizeof **block);
	if (!*block || !budget_take(index, size)) {
		free(*block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	**block = (struct block){.device = index,
				 .offset = device->next_offset,
				 .size = size,
				 .references = 1,
				 .foreign_fd = -1};
	device->next_offset += size;
	return CUDA_SUCCESS;
}

struct exported block_export(const struct block *block, uint64_t id)
{
	int device = block->device;
	return (struct exported){getpid(), memory.devices[device].fd, device, id, block->offset, block->size};
}

CUresult block_import(const struct exported *from, struct block **block)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", from->process, from->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE; // the exporter is gone
	*block = calloc(1, sizeof **block);
	if (!*block) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	**block = (struct block){.device = from->device,
				 .offset = from->offset,
				 .size = from->size,
				 .references = 1,
				 .foreign_fd = fd};
	return CUDA_SUCCESS;
}

// Opens the file of the memory once more, locked as budget.c asks. Returns -1 if that fails.
static int opened_again(int fd)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0 && flock(again, LOCK_SH)) {
		close(again);
		return -1;
	}
	return again;
}

int block_outlive(struct block *block)
{
	if (!block->outlives && block->foreign_fd < 0 && !block->shown) { // else it may have contents elsewhere
		int fd = budget_outlive(block->device, block->size);
		if (fd < 0)
			return -1;
		block->foreign_fd = fd;
		block->offset = 0;
		block->outlives = true;
	}
	return block->outlives ? opened_again(block->foreign_fd) : -1;
}

CUresult block_adopt(int descriptor, int device, uint64_t size, struct block **block)
{
	int fd = opened_again(descriptor);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*block = calloc(1, sizeof **block);
	if (!*block) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	**block = (struct block){.device = device, .size = size, .references = 1, .foreign_fd = fd, .outlives = true};
	return CUDA_SUCCESS;
}

CUresult block_view(int descriptor, int device, uint64_t size, struct block **block)
{
	void *view = mmap(NULL, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
	if (view == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*block = calloc(1, sizeof **block);
	if (!*block) {
		munmap(view, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	**block = (struct block){.device = device, .size = size, .references = 1, .foreign_fd = -1, .view = view};
	return CUDA_SUCCESS;
}

void block_shared(struct block *block)
{
	if (!block->shared)
		process_shares(1);
	block->shared = true;
}

void block_release(struct block *block)
{
	if (--block->references)
		return;
	if (block->shared)
		process_shares(-1);
	if (block->member)
		block_release(block->member);
	struct device *device = &memory.devices[block->device];
	if (block->view) {
		munmap(block->view, block->size);
	} else if (block->foreign_fd >= 0) {
		close(block->foreign_fd); // the exporting process accounts for it
	} else {
		fallocate(device->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->offset,
			  (off_t)block->size);
		budget_give(block->device, block->size);
	}
	free(block);
}
