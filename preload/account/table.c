/* table keeps blocks of memory by address, for account.c and preload/shared.c, which have the locks. Open addressing,
 * linear probing. */
#include "account.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1 << 10 };

static size_t home(const struct table *table, const void *address)
{
	return (size_t)((uintptr_t)address * 0x9E3779B97F4A7C15u >> 32) & (table->slot_count - 1);
}

/* The slot of an address, or the empty one where it would be. */
static struct block *slot_of(const struct table *table, const void *address)
{
	size_t i = home(table, address);
	while (table->slots[i].address && table->slots[i].address != address)
		i = (i + 1) & (table->slot_count - 1);
	return &table->slots[i];
}

HIDDEN struct block *table_find(const struct table *table, const void *address)
{
	struct block *slot = table->slots ? slot_of(table, address) : NULL;
	return slot && slot->address ? slot : NULL;
}

static bool grow(struct table *table)
{
	struct table larger = {.slot_count = table->slots ? 2 * table->slot_count : FIRST_SLOTS, .live = table->live};
	larger.slots = calloc(larger.slot_count, sizeof *larger.slots);
	if (!larger.slots)
		return false;
	for (size_t i = 0; i < table->slot_count; i++)
		if (table->slots[i].address)
			*slot_of(&larger, table->slots[i].address) = table->slots[i];
	free(table->slots);
	*table = larger;
	return true;
}

HIDDEN bool table_put(struct table *table, struct block block)
{
	struct block *slot = table_find(table, block.address);
	if (!slot) {
		if ((!table->slots || table->live >= table->slot_count / 2) && !grow(table))
			return false;
		slot = slot_of(table, block.address);
		table->live++;
	}
	*slot = block;
	return true;
}

HIDDEN struct block table_take(struct table *table, const void *address)
{
	struct block *slot = table_find(table, address), taken = {0};
	if (!slot)
		return taken;
	taken = *slot;
	size_t hole = (size_t)(slot - table->slots), mask = table->slot_count - 1;
	for (size_t i = (hole + 1) & mask; table->slots[i].address; i = (i + 1) & mask) {
		/* An entry moves back into the hole if the hole lies between its home and its slot. */
		if (((i - home(table, table->slots[i].address)) & mask) >= ((i - hole) & mask)) {
			table->slots[hole] = table->slots[i];
			hole = i;
		}
	}
	table->slots[hole].address = NULL;
	table->live--;
	return taken;
}

HIDDEN void table_clear(struct table *table)
{
	free(table->slots);
	memset(table, 0, sizeof *table);
}
