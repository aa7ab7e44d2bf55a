// Graphs, each of which is a list of operations. The entry points launch them.
#include <stdlib.h>

#include "execution/execution.h"

struct graph *graph_new(enum object_type type)
{
	return object_new(type, sizeof(struct graph));
}

bool graph_append(struct graph *graph, const struct operation *operation)
{
	if (graph->count == graph->capacity) {
		size_t capacity = graph->capacity ? 2 * graph->capacity : 16;
		struct operation *operations = realloc(graph->operations, capacity * sizeof *operations);
		if (!operations)
			return false;
		graph->operations = operations;
		graph->capacity = capacity;
	}
	graph->operations[graph->count++] = *operation;
	return true;
}

void graph_delete(struct graph *graph)
{
	captures_forget_graph(graph);
	free(graph->operations);
	object_delete(&graph->object);
}
