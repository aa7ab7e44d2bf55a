// Objects that a caller holds by an opaque handle. No handle value is used twice, so a stale one is recognised.
#ifndef CUDASIM_OBJECT_H
#define CUDASIM_OBJECT_H

#include "base/tree.h"

enum object_type {
	CONTEXT,
	STREAM,
	EVENT,
	GRAPH,
	GRAPH_EXEC,
	ALLOCATION,
	POOL,
	LIBRARY,
	KERNEL,
	FUNCTION,
	OBJECT_TYPES
};

struct object {
	struct tree_node node; // keyed by handle
	enum object_type type;
};

void *object_new(enum object_type type, size_t size); // zeroed, NULL without memory
void *object_new_at(enum object_type type, size_t size, uint64_t handle);
uint64_t object_new_handle(void);
void object_delete(struct object *object);
void *object_find(const void *handle, enum object_type type);
// Returns the next object of a type, from *cursor 0 on, or NULL after the last. The caller may delete it.
void *object_next(enum object_type type, uint64_t *cursor);
void *object_handle(const void *object);

#endif
