// Handles: opaque numbers, each used once.
#include <stdlib.h>

#include "base/simulator.h"

uint64_t object_new_handle(void)
{
	static uint64_t last = 0x10000;
	return last += 16;
}

void *object_new_at(enum object_type type, size_t size, uint64_t handle)
{
	struct object *object = calloc(1, size);
	if (!object)
		return NULL;
	object->type = type;
	tree_insert(&sim.objects, &object->node, handle);
	sim.statistics.objects[type]++;
	return object;
}

void *object_new(enum object_type type, size_t size)
{
	return object_new_at(type, size, object_new_handle());
}

void object_delete(struct object *object)
{
	tree_remove(&sim.objects, &object->node);
	sim.statistics.objects[object->type]--;
	free(object);
}

void *object_find(const void *handle, enum object_type type)
{
	struct object *object = (struct object *)tree_find(&sim.objects, (uint64_t)handle);
	return object && object->type == type ? object : NULL;
}

void *object_next(enum object_type type, uint64_t *cursor)
{
	struct object *object;
	do {
		object = (struct object *)tree_ceiling(&sim.objects, *cursor);
		if (object)
			*cursor = object->node.key + 1;
	} while (object && object->type != type);
	return object;
}

void *object_handle(const void *object)
{
	return object ? (void *)((const struct object *)object)->node.key : NULL;
}
