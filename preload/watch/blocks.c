/* blocks is the table of all blocks by kind and address, under lock.c's lock. Open addressing, linear probing. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1 << 10, BLOCKS_MAX = 1 << 20 };

static struct table {
	struct block *slots;
	size_t slot_count, live;
} all;

static size_t home(const struct table *table, enum block_kind kind, const void *address)
{
	return (size_t)(((uintptr_t)address + kind) * 0x9E3779B97F4A7C15u >> 32) & (table->slot_count - 1);
}

/* The slot of a block, or the empty one where it would be. */
static struct block *slot_of(const struct table *table, enum block_kind kind, const void *address)
{
	size_t i = home(table, kind, address);
	while (table->slots[i].kind && (table->slots[i].address != address || table->slots[i].kind != kind))
		i = (i + 1) & (table->slot_count - 1);
	return &table->slots[i];
}

HIDDEN struct block *blocks_find(enum block_kind kind, const void *address)
{
	struct block *slot = all.slots ? slot_of(&all, kind, address) : NULL;
	return slot && slot->kind ? slot : NULL;
}

static bool grow(void)
{
	struct table larger = {.slot_count = all.slots ? 2 * all.slot_count : FIRST_SLOTS, .live = all.live};
	larger.slots = calloc(larger.slot_count, sizeof *larger.slots);
	if (!larger.slots)
		return false;
	for (size_t i = 0; i < all.slot_count; i++)
		if (all.slots[i].kind)
			*slot_of(&larger, all.slots[i].kind, all.slots[i].address) = all.slots[i];
	free(all.slots);
	all = larger;
	return true;
}

HIDDEN bool blocks_put(struct block block)
{
	struct block *slot = blocks_find(block.kind, block.address);
	if (!slot) {
		if (all.live >= BLOCKS_MAX || ((!all.slots || all.live >= all.slot_count / 2) && !grow()))
			return false;
		slot = slot_of(&all, block.kind, block.address);
		all.live++;
	}
	*slot = block;
	return true;
}

HIDDEN struct block blocks_take(enum block_kind kind, const void *address)
{
	struct block *slot = blocks_find(kind, address), taken = {0};
	if (!slot)
		return taken;
	taken = *slot;
	size_t hole = (size_t)(slot - all.slots), mask = all.slot_count - 1;
	for (size_t i = (hole + 1) & mask; all.slots[i].kind; i = (i + 1) & mask) {
		/* An entry moves back into the hole if the hole lies between its home and its slot. */
		if (((i - home(&all, all.slots[i].kind, all.slots[i].address)) & mask) >= ((i - hole) & mask)) {
			all.slots[hole] = all.slots[i];
			hole = i;
		}
	}
	all.slots[hole].kind = NO_BLOCK;
	all.live--;
	return taken;
}

HIDDEN struct block *blocks_next(enum block_kind kind, size_t *slot)
{
	while (*slot < all.slot_count && all.slots[*slot].kind != kind)
		++*slot;
	return *slot < all.slot_count ? &all.slots[*slot] : NULL;
}

HIDDEN void blocks_clear(void)
{
	free(all.slots);
	memset(&all, 0, sizeof all);
}
