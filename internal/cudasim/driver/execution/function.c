// Functions: kernels bound to a context each. Where kernels come from is the entry points' affair.
#include "execution/execution.h"

// From this handle on.
static struct function *next_function(uint64_t handle, const struct kernel *kernel,
				      const struct context *context)
{
	for (struct tree_node *node = tree_ceiling(&sim.objects, handle); node;
	     node = tree_ceiling(&sim.objects, node->key + 1)) {
		struct function *function = (struct function *)node;
		if (function->object.type == FUNCTION && (!kernel || function->kernel == kernel) &&
		    (!context || function->context == context))
			return function;
	}
	return NULL;
}

void functions_forget(const struct kernel *kernel, const struct context *context)
{
	struct function *function = next_function(0, kernel, context);
	while (function) {
		uint64_t handle = function->object.node.key;
		object_delete(&function->object);
		function = next_function(handle + 1, kernel, context);
	}
}

struct function *function_find(const struct kernel *kernel, const struct context *context)
{
	return next_function(0, kernel, context);
}
