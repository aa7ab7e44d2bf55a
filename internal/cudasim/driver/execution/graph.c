// Lists of operations, and graphs, each of which is such a list. The entry points launch them.
#include <stdlib.h>

#include "execution/execution.h"

bool operations_append(struct operations *operations, const struct operation *operation)
{
	if (operations->count == operations->capacity) {
		size_t capacity = operations->capacity ? 2 * operations->capacity : 16;
		struct operation *items = realloc(operations->items, capacity * sizeof *items);
		if (!items)
			return false;
		operations->items = items;
		operations->capacity = capacity;
	}
	operations->items[operations->count++] = *operation;
	return true;
}

void operations_free(struct operations *operations)
{
	free(operations->items);
	*operations = (struct operations){0};
}

struct graph *graph_new(enum object_type type)
{
	return object_new(type, sizeof(struct graph));
}

void graph_delete(struct graph *graph)
{
	captures_forget_graph(graph);
	operations_free(&graph->operations);
	object_delete(&graph->object);
}
