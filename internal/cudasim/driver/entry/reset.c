// cudasim_reset, and what a fork leaves.
#include "cudasim.h"
#include "base/process.h"
#include "entry/gate.h"

// CUDA does not survive fork: the child of an initialised process gets errors only. The fork waits for other threads to
// leave, so the child's copy of the state is whole.
static void before_fork(void)
{
	pthread_mutex_lock(&sim.lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&sim.lock);
}

static void in_child(void)
{
	sim.forked = sim.forked || sim.initialized;
	process_forget();
	budget_forget();
	pthread_mutex_unlock(&sim.lock);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

static void drop_everything(void)
{
	queue_drop(NULL);
	while (captures)
		capture_delete(captures);
	memory_drop_mappings();
	while (sim.objects.root) {
		struct object *object = (struct object *)sim.objects.root;
		if (object->type == CONTEXT)
			streams_forget_context((struct context *)object);
		if (object->type == ALLOCATION)
			block_release(((struct allocation *)object)->block);
		if (object->type == GRAPH || object->type == GRAPH_EXEC)
			graph_delete((struct graph *)object);
		else
			object_delete(object);
	}
	memory_drop();
	primaries_reset();
	sim.statistics = (struct statistics){0};
}

EXPORT void cudasim_reset(void)
{
	pthread_mutex_lock(&sim.lock);
	if (!sim.forked) {
		if (gate_reset())
			drop_everything();
		sim.initialized = false;
		sim.epoch++;
		gate_start();
		process_withdraw();
	}
	pthread_mutex_unlock(&sim.lock);
}
