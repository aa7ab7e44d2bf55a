// The execution layer: contexts, streams, events, captures and graphs, kernels, and the queue in which all work
// waits. It uses the memory layer and knows nothing of the functions that programs call.
#ifndef CUDASIM_EXECUTION_H
#define CUDASIM_EXECUTION_H

#include "memory/memory.h"

struct context {
	struct object object;
	int device;
	unsigned flags; // as cuCtxSetFlags set them; they change nothing here
	CUresult sticky; // the error that killed the context; every later call returns it
	uint32_t peers;
	struct stream *legacy;
	struct stream *threads; // the threads' own default streams
	unsigned mark;		// queue pass that needs all its blocking streams
	unsigned held;		// queue pass that found one of them held up
};

struct stream {
	struct object object;
	struct context *context;
	uint64_t id; // no other stream of the process ever has it
	unsigned flags;
	bool legacy;
	int thread; // the thread that has it as its default stream, else 0
	struct stream *next_thread;
	unsigned mark; // queue pass that needs this stream
	unsigned held; // queue pass that found it held up by a host function
	struct capture *capture;
	uint64_t captured; // operations it brought to the capture
	bool unjoined;	   // the origin has not waited for the last of them
};

uint64_t stream_new_id(void);

struct event {
	struct object object;
	struct context *context;
	unsigned flags;
	uint64_t recorded; // sequence number of the last record, 0 if never
	bool whole;	   // of everything that the context had been given until then
	bool complete;
	uint64_t time; // ns
	struct capture *capture;
	uint64_t captured_stream, captured; // where and after how many operations
};

enum operation_type { COPY, SET, LAUNCH, HOST_FUNCTION, RECORD, WAIT, FREE };

enum { PARAMETER_BYTES = 256 };

// The rows that a copy or fill touches on one side.
struct rows {
	uint64_t address, pitch, width, height; // width in bytes
};

// One asynchronous operation: queued on a stream or kept in a graph.
struct operation {
	enum operation_type type;
	struct rows to; // of a copy or fill
	union {
		struct {
			struct rows from;
			int to_device, from_device; // that must have access to each
		} copy;
		struct {
			uint32_t value, element;
		} set;
		struct {
			const struct emulation *emulation;
			unsigned grid;				    // thread blocks
			_Alignas(16) char parameters[PARAMETER_BYTES]; // each at its own alignment
		} launch;
		struct {
			CUhostFn function;
			void *data;
		} host;
		struct {
			CUevent event;
			uint64_t sequence; // of the record waited for
		} event;
		uint64_t address; // to free
	};
};

struct capture {
	CUstreamCaptureMode mode;
	int thread;
	struct stream *origin;
	bool invalidated;
	struct graph *graph;
	bool borrowed; // the graph was the caller's before
	struct capture *next;
};

struct graph {
	struct object object;
	struct operation *operations;
	size_t count, capacity;
};

// --- contexts (context.c)
struct context *current_context(void);
CUresult context_health(void); // CUDA_SUCCESS, or why there is no usable current context
CUresult context_new(int device, uint64_t handle, struct context **result);
void context_delete(struct context *context);
struct reach kernel_reach(const struct context *context); // of fills too

// --- streams (stream.c)
struct stream *stream_default(struct context *context);
CUresult stream_resolve(CUstream handle, struct stream **result);
// Puts an operation where the stream's operations go: a graph under capture, or the queue.
CUresult stream_submit(struct stream *stream, const struct operation *operation);
void stream_delete(struct stream *stream);
void streams_forget_context(struct context *context);

// --- the queue of asynchronous operations (queue.c)
CUresult queue_push(struct stream *stream, const struct operation *operation, uint64_t *sequence);
// Some of the operations issued so far: those that match one of these. Streams and contexts are only compared, because
// they may be gone when a host function returns.
struct target {
	uint64_t until; // the last that counts, or 0 if all count
	const struct stream *stream, *legacy;
	const struct context *context, *blocking; // all its streams, its blocking streams
	int device, freed;			  // number + 1: all of the device, its frees
	uint64_t sequence;
	uint64_t address, size; // host memory that the work may use
	bool all;
};
// The work that an operation issued on the stream now would wait for.
struct target queue_turn(const struct stream *stream);
void queue_wait(struct target target);
bool queue_done(struct target target); // runs what it can, leaves host functions to threads of their own, never waits
void queue_run_free(void);	       // runs everything that needs no host function; never waits
extern uint64_t queue_count, queue_last; // how many operations wait, the last sequence number
void queue_poison(uint64_t address, uint64_t size); // memory was unmapped under operations in flight
void queue_drop(const struct stream *stream); // NULL: all

// --- copies and fills (operation.c)
uint64_t rows_size(const struct rows *rows); // from the first byte to the last, or 0 if the rows are empty
bool operation_execute(struct context *context, const struct operation *operation); // false: a fault

// --- kernels (kernel.c)
struct emulation { // of a kernel, in C
	const char *name;
	unsigned block[3]; // the only shape of thread block it is written for
	const struct parameter {
		size_t offset, size;
	} *parameters;
	size_t count;
	// Does the kernel's work on memory; mappings with ids above mapped_before came after the launch.
	CUresult (*run)(const struct context *context, unsigned grid, const void *parameters,
			uint64_t mapped_before);
};
enum { EMULATIONS = 2 };
extern const struct emulation emulations[EMULATIONS];

struct kernel {
	struct object object;
	const struct emulation *emulation;
};

struct function { // the kernel in one context
	struct object object;
	struct kernel *kernel;
	struct context *context;
	bool loaded; // its code is on the device
};
CUresult function_of(struct kernel *kernel, struct context *context, struct function **function);
CUresult function_load(struct kernel *kernel, struct context *context); // before a launch
// A NULL kernel stands for any.
struct function *function_find(const struct kernel *kernel, const struct context *context);
void functions_forget(const struct context *context);

// --- stream capture (capture.c)
extern struct capture *captures;
CUresult capture_begin(struct stream *stream, struct graph *graph, CUstreamCaptureMode mode); // NULL: a new graph
CUresult capture_refuse(struct capture *capture, CUresult code); // invalidates it, and returns the code
bool capture_unjoined(const struct capture *capture);
CUresult capture_forbids_unsafe(void);				 // calls that could wait, such as cuMemAlloc
CUresult capture_forbids_context(const struct context *context); // calls that wait for the context
CUresult capture_forbids_legacy(const struct context *context);	 // work on the legacy stream
CUresult capture_join(struct stream *stream, struct event *event);
void capture_delete(struct capture *capture);
void captures_forget_graph(struct graph *graph);
void captures_forget_stream(struct stream *stream);

// --- graphs (graph.c)
struct graph *graph_new(enum object_type type);
bool graph_append(struct graph *graph, const struct operation *operation);
void graph_delete(struct graph *graph);

#endif
