// Runs copies and fills; queue.c orders them.
#include <string.h>

#include "execution/execution.h"

static bool touchable(struct reach reach, uint64_t address, uint64_t pitch, uint64_t width,
		      uint64_t height, bool write)
{
	uint64_t size = pitch * (height - 1) + width;
	enum place place = memory_place(reach, address, size, write);
	if (place == PLACE_DEVICE && write)
		memory_populate(address, size);
	return place != PLACE_FORBIDDEN;
}

bool operation_execute(struct context *context, const struct operation *operation)
{
	if (operation->type == COPY) {
		uint64_t target = operation->copy.target, source = operation->copy.source,
			 width = operation->copy.width;
		uint64_t target_pitch = operation->copy.target_pitch,
			 source_pitch = operation->copy.source_pitch;
		uint64_t height = operation->copy.height;
		if (!width || !height)
			return true;
		if (!touchable(copy_reach(operation->copy.target_device), target, target_pitch, width, height,
			       true) ||
		    !touchable(copy_reach(operation->copy.source_device), source, source_pitch, width, height,
			       false))
			return false;
		for (uint64_t row = 0; row < height; row++)
			memmove((void *)(target + row * target_pitch), (void *)(source + row * source_pitch),
				width);
		return true;
	}
	uint64_t target = operation->set.target, pitch = operation->set.pitch, width = operation->set.width;
	uint64_t height = operation->set.height;
	uint32_t value = operation->set.value;
	if (!width || !height)
		return true;
	if (!touchable(kernel_reach(context), target, pitch, width, height, true))
		return false;
	for (uint64_t row = 0; row < height; row++) {
		char *start = (char *)(target + row * pitch);
		if (operation->set.element == 1)
			memset(start, (int)value, width);
		else
			for (uint64_t at = 0; at < width; at += operation->set.element)
				memcpy(start + at, &value, operation->set.element);
	}
	return true;
}
