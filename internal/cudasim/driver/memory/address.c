// Addresses of the process: reserved and cleared ones are PROT_NONE. mapping.c decides what the others show.
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/memory.h"

// The number of VMAs of a process is limited (vm.max_map_count). At the limit the kernel refuses even a call that would
// leave fewer. The simulator keeps a few spare VMAs, and gives them up at the limit.
static char *ballast;
enum { BALLAST = 8 };

void ballast_take(void)
{
	if (ballast)
		return;
	char *pages = mmap(NULL, BALLAST * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			   0);
	if (pages == MAP_FAILED)
		return;
	for (int i = 0; i < BALLAST; i += 2)
		mprotect(pages + i * PAGE, PAGE, PROT_READ);
	ballast = pages;
}

static void ballast_drop(void)
{
	munmap(ballast, BALLAST * PAGE);
	ballast = NULL;
}

static bool clear(uint64_t address, uint64_t size)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	return mmap((void *)address, size, PROT_NONE, flags, -1, 0) != MAP_FAILED;
}

bool addresses_clear(uint64_t address, uint64_t size)
{
	if (clear(address, size))
		return true;
	if (!ballast)
		return false;
	ballast_drop();
	bool cleared = clear(address, size);
	ballast_take();
	return cleared;
}

static bool find(uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	if (hint && hint % alignment == 0) {
		void *at = mmap((void *)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
		if (at == (void *)hint) {
			*address = hint;
			return true;
		}
		if (at != MAP_FAILED) // a kernel that does not know the flag
			munmap(at, size);
	}
	uint64_t padded;
	if (__builtin_add_overflow(size, alignment, &padded))
		return false;
	void *at = mmap(NULL, padded, PROT_NONE, flags, -1, 0);
	if (at == MAP_FAILED)
		return false;
	uint64_t start = (uint64_t)at, aligned = (start + alignment - 1) & ~(alignment - 1);
	if (aligned > start)
		munmap((void *)start, aligned - start);
	if (start + padded > aligned + size)
		munmap((void *)(aligned + size), start + padded - aligned - size);
	*address = aligned;
	return true;
}

bool addresses_reserve(struct tree *ranges, uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address)
{
	struct reservation *reservation = calloc(1, sizeof *reservation);
	if (!reservation || !find(hint, size, alignment, address)) {
		free(reservation);
		return false;
	}
	reservation->size = size;
	tree_insert(ranges, &reservation->node, *address);
	return true;
}
