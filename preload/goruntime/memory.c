/* memory serves the Go runtime's requests for system memory. The runtime aborts the process when it gets none, so it
 * gets memory that was reserved before. Calls that enter Go reserve more first; there a refusal is a code (room.go).
 * See docs/design/limits.md. */
#define _GNU_SOURCE
#include "goruntime.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ARENA (64 * MIB) /* Go's heap grows by this size and is aligned to it */

/* Memory below used is Go's; memory from fresh on was never written. */
struct stock {
	uintptr_t base, used, fresh, end;
};
/* Read under the lock, which is taken with signals blocked. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stock addresses; /* reserved: tables as large as an address space has room for, mostly never used */
static struct stock heap;
static struct stock other; /* Go's records of the heap, and an index of 32 MiB */
static bool heap_asked;

static const struct {
	size_t addresses, heap, other;
} at_start = {1100 * MIB, 2 * ARENA, 64 * MIB};

HIDDEN int memory_short;
HIDDEN uint64_t memory_bound;

/* Under mlockall(MCL_FUTURE) the kernel would fill memory that can be used from the start, and keep it. */
HIDDEN void *memory_map(void *hint, size_t size, int protection)
{
	void *got = mmap(hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (got == MAP_FAILED)
		return NULL;
	munlock(got, size);
	if (protection == PROT_NONE || mprotect(got, size, protection) == 0)
		return got;
	munmap(got, size);
	return NULL;
}

static uintptr_t map(uintptr_t hint, size_t size, int protection)
{
	return (uintptr_t)memory_map((void *)hint, size, protection);
}

static bool stock(struct stock *s, uintptr_t base, size_t size)
{
	if (base)
		*s = (struct stock){base, base, base, base + size};
	return base != 0;
}

/* Maps memory at a free address, with free addresses behind it that are likely to stay free. */
static uintptr_t map_heap(size_t size)
{
	for (uintptr_t i = 0; i < 0x80; i++) {
		uintptr_t hint = i << 40 | (uintptr_t)0xc0 << 32, got = map(hint, size, PROT_READ | PROT_WRITE);
		if (got == hint || !got)
			return got;
		munmap((void *)got, size);
	}
	uintptr_t got = map(0, size + ARENA, PROT_READ | PROT_WRITE);
	if (!got)
		return 0;
	uintptr_t base = (got + ARENA - 1) & ~(ARENA - 1);
	if (base > got)
		munmap((void *)got, base - got);
	if (base < got + ARENA)
		munmap((void *)(base + size), got + ARENA - base);
	return base;
}

static void drop(struct stock *s)
{
	if (s->base)
		munmap((void *)s->base, s->end - s->base);
	*s = (struct stock){0};
}

HIDDEN void memory_release(void)
{
	drop(&addresses);
	drop(&heap);
	drop(&other);
}

HIDDEN size_t memory_at_start(void)
{
	return at_start.addresses + at_start.heap + at_start.other;
}

HIDDEN bool memory_reserve(void)
{
	if (stock(&addresses, map(0, at_start.addresses, PROT_NONE), at_start.addresses) &&
	    stock(&heap, map_heap(at_start.heap), at_start.heap) &&
	    stock(&other, map(0, at_start.other, PROT_READ | PROT_WRITE), at_start.other))
		return true;
	memory_release();
	return false;
}

HIDDEN bool memory_spare(int mappings)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)mappings * page;
	if (size < 16 * MIB)
		size = 16 * MIB;
	uintptr_t base = map(0, size, PROT_READ | PROT_WRITE);
	bool enough = base != 0;
	for (int i = 1; enough && i < mappings; i += 2)
		enough = mprotect((void *)(base + (size_t)i * page), page, PROT_NONE) == 0;
	if (base)
		munmap((void *)base, size);
	return enough;
}

/* A quarter of the heap may be in use (room.go). A visit may need the rest: for its garbage, and for a table that
 * doubles beside the old one. */
static void judge(void)
{
	size_t whole = heap.end - heap.base;
	bool enough = (heap.fresh - heap.base) * 4 <= whole && other.end - other.used >= whole / 16 + 4 * MIB;
	__atomic_store_n(&memory_bound, whole, __ATOMIC_RELAXED);
	__atomic_store_n(&memory_short, !enough, __ATOMIC_RELEASE);
}

static bool extend_heap(size_t size)
{
	uintptr_t got = map(heap.end, size, PROT_READ | PROT_WRITE);
	if (got != heap.end) {
		if (got)
			munmap((void *)got, size);
		return false;
	}
	heap.end += size;
	return true;
}

static void extend(void)
{
	size_t whole = heap.end - heap.base, more = whole / 8 + 16 * MIB;
	if (other.end - other.used < more) {
		uintptr_t got = map(0, 2 * more, PROT_READ | PROT_WRITE);
		if (!got)
			return;
		stock(&other, got, 2 * more); /* the rest of the last one is leaked */
	}
	if ((heap.fresh - heap.base) * 4 > whole && !extend_heap(whole))
		extend_heap(ARENA);
	judge();
}

HIDDEN void memory_extend(void)
{
	pthread_mutex_lock(&lock);
	extend();
	pthread_mutex_unlock(&lock);
}

static uintptr_t take(struct stock *s, size_t size)
{
	size_t page = 4096 * 16; /* the largest page that a kernel of these machines has */
	size = (size + page - 1) & ~(page - 1);
	if (s->end - s->used < size)
		return 0;
	uintptr_t base = s->used;
	s->used += size;
	return base;
}

static bool holds(const struct stock *s, uintptr_t base)
{
	return base - s->base < s->end - s->base;
}

/* Go's hints are refused until they end where the heap does. */
static uintptr_t take_heap(uintptr_t hint, size_t size)
{
	heap_asked = true;
	if (hint && hint != heap.used)
		return ENOMEM;
	if (heap.end - heap.used < size)
		extend_heap(size);
	uintptr_t got = take(&heap, size);
	return got ? got : ENOMEM;
}

/* Makes reserved pages of a table usable, and the next pages with them, so that 64 KiB serve 32 GiB of heap. */
static uintptr_t use_addresses(uintptr_t base, size_t size)
{
	static struct {
		uintptr_t base, end;
	} used[32];
	static int count;
	for (int i = 0; i < count; i++)
		if (base >= used[i].base && base + size <= used[i].end)
			return base;
	size_t more = 64 << 10;
	if (more < size)
		more = size;
	if (more > addresses.end - base)
		more = addresses.end - base;
	if (mprotect((void *)base, more, PROT_READ | PROT_WRITE) != 0)
		return ENOMEM;
	if (count < (int)(sizeof used / sizeof *used)) {
		used[count].base = base;
		used[count++].end = base + more;
	}
	return base;
}

static uintptr_t from_stock(uintptr_t hint, size_t size, int protection, bool fixed)
{
	if (fixed && holds(&heap, hint)) {
		if (hint < heap.fresh)
			return 0;
		heap.fresh = hint + size;
		return hint;
	}
	if (fixed)
		return holds(&addresses, hint) ? use_addresses(hint, size) : 0;
	if (protection != PROT_NONE)
		return take(&other, size);
	if (hint || heap_asked)
		return take_heap(hint, size);
	return take(&addresses, size);
}

/* The Go runtime calls this for mmap (scripts/build.sh). Returns an address, or an error number. */
HIDDEN uintptr_t __wrap_x_cgo_mmap(void *hint, uintptr_t size, int32_t protection, int32_t flags, int32_t fd,
				   uint32_t offset)
{
	uintptr_t got = 0;
	if ((flags & ~MAP_FIXED) == (MAP_PRIVATE | MAP_ANONYMOUS)) {
		pthread_mutex_lock(&lock);
		got = from_stock((uintptr_t)hint, size, protection, flags & MAP_FIXED);
		judge();
		pthread_mutex_unlock(&lock);
	}
	if (got && (got != ENOMEM || hint))
		return got;
	void *mapped = mmap(hint, size, protection, flags, fd, offset);
	return mapped == MAP_FAILED ? (uintptr_t)errno : (uintptr_t)mapped;
}

HIDDEN void __wrap_x_cgo_munmap(void *base, uintptr_t size)
{
	pthread_mutex_lock(&lock);
	bool ours = holds(&heap, (uintptr_t)base) || holds(&addresses, (uintptr_t)base) || holds(&other, (uintptr_t)base);
	pthread_mutex_unlock(&lock);
	if (ours)
		madvise(base, size, MADV_DONTNEED); /* its addresses are not reused */
	else
		munmap(base, size); /* which may fail: only address space is lost */
}
