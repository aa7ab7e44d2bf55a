/* copies has the functions that copy or set memory. The driver takes an address without a mapping for host memory,
 * unless the call says that it is the device's, and the processor faults there. So while the program itself keeps
 * memory paused, libtms.so looks for its addresses among the arguments, and returns the code that the driver has for
 * addresses of the device. It does not look for memory of a gated pause, because the gate stops the call. */
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"
#include "words.h"

#include <stdio.h>

HIDDEN uint32_t copies_checked;

/* A CUmemorytype, a CUmemcpy3DOperandType and a CUgraphNodeType. */
enum { ON_HOST = 1, IN_ARRAY = 3, BY_POINTER = 1, IS_COPY = 1 };

/* Once, because a program may go on making the same call. */
HIDDEN void copies_log_refused(void)
{
	static atomic_flag told = ATOMIC_FLAG_INIT;
	char line[256];
	if (atomic_flag_test_and_set(&told))
		return;
	snprintf(line, sizeof line, "%s (said once)", tms_last_error());
	error_log(line);
}

/* These functions return an address of such memory, or 0. */
HIDDEN uintptr_t copies_exposed(uintptr_t address)
{
	int code = NOT_OURS;
	char tag[1];
	if (!may_be_ours(address) || IN_GO((code = tmsExposed(address, tag, sizeof tag), SUCCESS)) != SUCCESS)
		return 0;
	return code == SUCCESS ? address : 0;
}

static uintptr_t in_list(const uintptr_t *addresses, size_t count)
{
	uintptr_t found = 0;
	for (size_t i = 0; addresses && i < count && !found; i++)
		found = copies_exposed(addresses[i]);
	return found;
}

/* One side of a CUDA_MEMCPY2D and of a CUDA_MEMCPY3D, which CUDA_MEMCPY3D_PEER is like. */
struct row_side {
	size_t x, y;
	int type;
	uintptr_t host, device;
	void *array;
	size_t pitch;
};
struct layer_side {
	size_t x, y, z, level;
	int type;
	uintptr_t host, device;
	void *array, *context;
	size_t pitch, height;
};

static uintptr_t of_side(int type, uintptr_t host, uintptr_t device)
{
	return type == IN_ARRAY ? 0 : copies_exposed(type == ON_HOST ? host : device);
}

static uintptr_t in_rows(const struct row_side *side)
{
	uintptr_t found = 0;
	for (int i = 0; side && i < 2 && !found; i++)
		found = of_side(side[i].type, side[i].host, side[i].device);
	return found;
}

static uintptr_t in_layers(const struct layer_side *side)
{
	uintptr_t found = 0;
	for (int i = 0; side && i < 2 && !found; i++)
		found = of_side(side[i].type, side[i].host, side[i].device);
	return found;
}

/* One side of a cudaMemcpy3DParms, and of a cudaMemcpy3DPeerParms. */
struct pitched_side {
	void *array;
	size_t position[3];
	struct forward_pitched memory;
};
struct peer_side {
	struct pitched_side side;
	int device;
};

static uintptr_t of_pitched(const struct pitched_side *side)
{
	return side->array ? 0 : copies_exposed((uintptr_t)side->memory.pointer);
}

static uintptr_t in_pitched(const struct pitched_side *side)
{
	return side ? of_pitched(&side[0]) ?: of_pitched(&side[1]) : 0;
}

static uintptr_t in_peers(const struct peer_side *side)
{
	return side ? of_pitched(&side[0].side) ?: of_pitched(&side[1].side) : 0;
}

/* CUDA_MEMCPY3D_BATCH_OP and cudaMemcpy3DBatchOp. */
struct operand {
	int type;
	uintptr_t address, more[3];
};
struct copy_operation {
	struct operand from, to;
	size_t extent[3];
	int order;
	unsigned flags;
};

static uintptr_t of_operand(const struct operand *operand)
{
	return operand->type == BY_POINTER ? copies_exposed(operand->address) : 0;
}

static uintptr_t in_operations(const struct copy_operation *of, size_t count)
{
	uintptr_t found = 0;
	for (size_t i = 0; of && i < count && !found; i++)
		found = of_operand(&of[i].from) ?: of_operand(&of[i].to);
	return found;
}

/* CUgraphNodeParams and cudaGraphNodeParams: the parameters of a copy come behind its flags and context. */
struct node {
	int type, reserved[3], flags, unused;
	void *context;
	union {
		struct layer_side layers[2];
		struct pitched_side pitched[2];
	};
};

static uintptr_t in_node(const struct node *node)
{
	return node && node->type == IS_COPY ? in_layers(node->layers) : 0;
}

static uintptr_t in_runtime_node(const struct node *node)
{
	return node && node->type == IS_COPY ? in_pitched(node->pitched) : 0;
}

static int refuse(const char *call, uintptr_t address)
{
	char tag[64] = "";
	(void)IN_GO(tmsExposed(address, tag, sizeof tag));
	(void)error_fail(ERROR_INVALID_VALUE,
			 "%s was refused (1): %#lx is memory of tag \"%s\", which is paused; resume it first", call,
			 (unsigned long)address, tag);
	copies_log_refused();
	return ERROR_INVALID_VALUE;
}

#define AT(address) copies_exposed((uintptr_t)(address))
#define LIST(addresses, count) in_list((const uintptr_t *)(addresses), count)
#define ROWS(copy) in_rows((const struct row_side *)(copy))
#define LAYERS(copy) in_layers((const struct layer_side *)(copy))
#define PITCHED(copy) in_pitched((const struct pitched_side *)(copy))
#define PITCHED_PEER(copy) in_peers((const struct peer_side *)(copy))
#define OPERATIONS(operations, count) in_operations((const struct copy_operation *)(operations), count)
#define NODE(parameters) in_node((const struct node *)(parameters))
#define RUNTIME_NODE(parameters) in_runtime_node((const struct node *)(parameters))

/* A function of its own, so that a call that is passed on needs no frame. Where a pause from outside holds the program,
 * the answer is for after it. */
#define CHECKED(kind, since, symbol, words, found)                                                         \
	OUT_OF_LINE int checked_##symbol(WORDS_##words)                                             \
	{                                                                                                  \
		uintptr_t address = found;                                                                 \
		int code = SUCCESS;                                                                        \
		if (address && gate_is_closed() && (code = gate_wait()) == SUCCESS)                       \
			address = found;                                                                   \
		if (address && code == SUCCESS)                                                            \
			code = refuse(#symbol, address);                                                   \
		return code == SUCCESS ? forward_##symbol(PASS_##words) : RESULT_OF_ANY(#symbol, code);    \
	}                                                                                                  \
	HOT EXPORT int symbol(WORDS_##words)                                                               \
	{                                                                                                  \
		return copies_are_checked() ? checked_##symbol(PASS_##words) : forward_##symbol(PASS_##words); \
	}
COPIES(CHECKED, CHECKED, X, N)
