// Functions: kernels, each bound to a context. The entry points find the kernels.
#include "execution/execution.h"

struct function *function_find(const struct kernel *kernel, const struct context *context)
{
	struct function *function;
	for (uint64_t cursor = 0; (function = object_next(FUNCTION, &cursor));)
		if ((!kernel || function->kernel == kernel) && (!context || function->context == context))
			return function;
	return NULL;
}

void functions_forget(const struct kernel *kernel, const struct context *context)
{
	struct function *function;
	while ((function = function_find(kernel, context)))
		object_delete(&function->object);
}
