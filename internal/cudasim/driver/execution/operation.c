// Runs copies and fills; queue.c orders them.
#include <string.h>

#include "execution/execution.h"

uint64_t rows_size(const struct rows *rows)
{
	return rows->width && rows->height ? rows->pitch * (rows->height - 1) + rows->width : 0;
}

static bool touchable(struct reach reach, const struct rows *rows, bool write)
{
	uint64_t size = rows_size(rows);
	enum place place = memory_place(reach, rows->address, size, write);
	if (place == PLACE_DEVICE && write)
		memory_populate(rows->address, size);
	return place == PLACE_HOST || place == PLACE_DEVICE;
}

static void fill(char *row, uint64_t width, uint32_t value, uint32_t element)
{
	if (element == 1)
		memset(row, (int)value, width);
	else
		for (uint64_t at = 0; at < width; at += element)
			memcpy(row + at, &value, element);
}

bool operation_execute(struct context *context, const struct operation *operation)
{
	const struct rows *to = &operation->to, *from = operation->type == COPY ? &operation->copy.from : NULL;
	if (!rows_size(to))
		return true;
	if (!touchable(from ? copy_reach(operation->copy.to_device) : kernel_reach(context), to, true) ||
	    (from && !touchable(copy_reach(operation->copy.from_device), from, false)))
		return false;
	for (uint64_t row = 0; row < to->height; row++) {
		char *target = (char *)(to->address + row * to->pitch);
		if (from)
			memmove(target, (void *)(from->address + row * from->pitch), to->width);
		else
			fill(target, to->width, operation->set.value, operation->set.element);
	}
	return true;
}
