// The simulator's shared state, and what its files offer one another.
// One lock guards everything: driver functions take it in ENTER and hold it to their end.
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <pthread.h>
#include <stdbool.h>

#include "abi/api.h"
#include "abi/functions.h"
#include "base/tree.h"
#include "abi/types.h"

enum { MAX_DEVICES = 16, CONTEXT_STACK = 64 };

// Physical memory: a range of its device's memfd. Offsets are handed out once and
// ascending, so fresh memory is zero by construction and neighbours merge into one VMA.
struct block {
	int device;
	uint64_t offset, size;
	int references; // a handle, each mapping
	struct allocation *handle;
	CUmemAllocationProp prop;
	int foreign_fd; // imported from another process: its memfd, else -1
};

// Addresses that show a block: by cuMemMap, or by cuMemAlloc (context != 0).
struct mapping {
	struct tree_node node; // keyed by address
	uint64_t size, requested;
	struct block *block;
	uint32_t access, previous_access; // 2 bits per device: CUmemAccess_flags
	uint64_t context;
	uint64_t id;
	struct pool *pool;
	bool freeing; // given to cuMemFreeAsync
};

struct reservation {
	struct tree_node node; // keyed by address
	uint64_t size;
};

// Pinned host memory, allocated here or registered.
struct host_range {
	struct tree_node node; // keyed by address
	uint64_t size;
	unsigned flags;
	uint64_t context;
	bool registered;
};

// Everything a caller holds by an opaque handle. Handle values are never used twice,
// so a stale one is recognised.
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

struct allocation {
	struct object object;
	struct block *block;
	int references;
};

struct pool {
	struct object object;
	int device;
	uint64_t threshold, used, high;
	int reuse[3];
};

struct context {
	struct object object;
	int device;
	unsigned flags;
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
	unsigned flags;
	int priority;
	bool legacy;
	int thread; // whose default stream it is, else 0
	struct stream *next_thread;
	unsigned mark; // queue pass that needs this stream
	unsigned held; // queue pass that found it held up by a host function
	struct capture *capture;
	uint64_t captured; // operations it brought to the capture
	bool unjoined;	   // the origin has not waited for the last of them
};

struct event {
	struct object object;
	struct context *context;
	unsigned flags;
	uint64_t recorded; // sequence number of the last record, 0 if never
	bool complete;
	double time; // ms
	struct capture *capture;
	uint64_t captured_stream, captured; // where and after how many operations
};

enum operation_type { COPY, SET, LAUNCH, HOST_FUNCTION, CALLBACK, RECORD, WAIT, FREE };

struct emulation; // of a kernel, in C
enum { PARAMETER_BYTES = 256 };

// One asynchronous operation: queued on a stream or kept in a graph.
struct operation {
	enum operation_type type;
	union {
		struct {
			uint64_t target, target_pitch, source, source_pitch, width, height;
			int target_device, source_device; // that must have access to each
		} copy;
		struct {
			uint64_t target, pitch, width, height; // width in bytes
			uint32_t value, element;
		} set;
		struct {
			const struct emulation *emulation;
			unsigned grid;				    // thread blocks
			_Alignas(16) char parameters[PARAMETER_BYTES]; // each at its own alignment
		} launch;
		struct {
			CUhostFn function;
			CUstreamCallback callback;
			void *data;
		} host;
		struct {
			CUevent event;
			uint64_t sequence; // of the record waited for
		} event;
		uint64_t address; // to free
	};
};

struct operations {
	struct operation *items;
	size_t count, capacity;
};

struct capture {
	uint64_t id;
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
	struct operations operations;
};

struct device {
	uint64_t total, used;
	int fd; // memfd, -1 until needed
	uint64_t next_offset;
	uint64_t heap, heap_end;    // addresses for cuMemAlloc not handed out yet
	struct tree free_addresses; // stacks of freed cuMemAlloc ranges, keyed by size
	struct context *primary;
	uint64_t primary_handle; // stays over resets of the context, as the real one does
	int primary_references;
	unsigned primary_flags;
	struct pool *pool;
};

struct statistics {
	uint64_t handles, handle_bytes, reserved_bytes, mappings, mapped_bytes, allocations, allocation_bytes,
		registrations, registered_bytes, host_allocations, host_bytes;
	uint64_t objects[OBJECT_TYPES];
};

struct simulator {
	pthread_mutex_t lock;
	bool configured, initialized, forked;
	unsigned epoch; // of cudasim_reset: thread-local state of an older one is void
	int device_count;
	uint64_t memory, granularity;
	bool peers; // devices can access one another's memory
	struct device devices[MAX_DEVICES];
	uint64_t next_handle, next_id;
	struct tree objects, mappings, reservations, heaps, host;
	struct capture *captures;
	struct statistics statistics;
};
extern struct simulator sim;

struct thread_state {
	unsigned epoch;
	int depth;
	uint64_t stack[CONTEXT_STACK];
	CUstreamCaptureMode capture_mode;
	bool in_host_function;
};
// The calling thread's state, cleared if it is from before a reset.
struct thread_state *thread_state(void);
int thread_id(void);

// --- entry (fault.c)
enum function {
#define X(name, symbol, since, needs) FN_##symbol,
	DRIVER_FUNCTIONS(X)
#undef X
		FUNCTION_COUNT
};
// Counts the call, applies a planned failure, checks what the function needs. Takes the lock.
CUresult sim_enter(enum function function);
void sim_leave(const int *guard);
#define ENTER(symbol)                                                                                        \
	CUresult entered_ = sim_enter(FN_##symbol);                                                          \
	if (entered_ != CUDA_SUCCESS)                                                                        \
		return entered_;                                                                             \
	int guard_ __attribute__((cleanup(sim_leave), unused)) = 0
// Returns early from a driver function with the error of another step.
#define TRY(step)                                                                                            \
	do {                                                                                                 \
		CUresult tried_ = (step);                                                                    \
		if (tried_ != CUDA_SUCCESS)                                                                  \
			return tried_;                                                                       \
	} while (0)
void sim_start(void); // reads the environment once
void sim_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void failures_reset(void);
void failures_parse(const char *text);

// --- configuration (config.c)
void sim_configure(void);

// --- objects (object.c)
void *object_new(enum object_type type, size_t size); // zeroed, NULL without memory
void *object_new_at(enum object_type type, size_t size, uint64_t handle);
void object_delete(struct object *object);
void *object_find(const void *handle, enum object_type type);
void *object_handle(const void *object);

// --- memory behind addresses (backing.c)
struct block *block_new(int device, uint64_t size, CUresult *result);
void block_release(struct block *block);
bool addresses_clear(uint64_t address, uint64_t size); // PROT_NONE again
bool addresses_reserve(uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address);
CUresult mapping_new(uint64_t address, uint64_t size, struct block *block, struct mapping **result);
void mapping_delete(struct mapping *mapping); // the addresses are cleared by the caller
struct mapping *mapping_at(uint64_t address);
int access_to_protection(uint32_t access);
// Who touches memory: a device, with access to handles mapped for it and to what cuMemAlloc gave on the
// devices of the set.
struct reach {
	int device;
	uint32_t devices;
};
struct reach copy_reach(int device); // copies are staged where there is no peer access
struct reach kernel_reach(const struct context *context); // of fills too
enum place { PLACE_HOST, PLACE_DEVICE, PLACE_FORBIDDEN };
enum place memory_place(struct reach reach, uint64_t address, uint64_t size, bool write);
void memory_populate(uint64_t address, uint64_t size);

// --- contexts (context.c)
struct context *current_context(void);
CUresult context_health(void); // CUDA_SUCCESS, or why there is no usable current context
CUresult context_new(int device, unsigned flags, struct context **result);
void context_delete(struct context *context);
bool device_valid(CUdevice device);
bool peers(CUdevice device, CUdevice other); // whether one can be given access to the other

// --- allocations of cuMemAlloc's kind (memory.c)
CUresult memory_allocate(struct context *context, uint64_t size, struct pool *pool, uint64_t *address);
void memory_forget_addresses(struct device *device); // freed, kept for use again
CUresult memory_free(uint64_t address);
void memory_forget_context(uint64_t context);

// --- host memory (host.c)
bool host_pinned(uint64_t address, uint64_t size);
struct host_range *host_range_at(uint64_t address);
void host_forget_context(uint64_t context); // 0: all

// --- the queue of asynchronous operations (queue.c)
CUresult queue_push(struct stream *stream, const struct operation *operation, uint64_t *sequence);
void queue_wait_stream(struct stream *stream); // for what the stream has been given
void queue_wait_turn(struct stream *stream);   // for what an operation issued now would wait for
void queue_wait_context(struct context *context);
void queue_wait_device(int device);
void queue_wait_event(uint64_t sequence);
void queue_wait_frees(int device);			 // in stream order
void queue_wait_host(uint64_t address, uint64_t size); // for what may use this host memory
void queue_run_free(void); // runs all that no host function is needed for; never waits
// Queries: run what they can, have host functions called by threads of their own, never wait.
bool queue_stream_done(struct stream *stream);
bool queue_event_done(uint64_t sequence);
void queue_poison(uint64_t address, uint64_t size); // unmapped under operations in flight
void queue_drop(const struct stream *stream); // NULL: all
uint64_t queue_pending(void);
bool operation_execute(struct context *context,
		       const struct operation *operation); // copies and sets; false: fault

// --- kernels (kernel.c, library.c)
struct emulation {
	const char *name;
	unsigned block[3]; // the only shape of thread block it is written for
	const struct parameter {
		size_t offset, size;
	} *parameters;
	size_t count;
	// What the kernel would do; mapped_before: ids of mappings above it came after the launch.
	CUresult (*run)(const struct context *context, unsigned grid, const void *parameters,
			uint64_t mapped_before);
};
enum { EMULATIONS = 1 };
extern const struct emulation emulations[EMULATIONS];
void functions_forget_context(struct context *context);

// --- streams, events, capture, graphs
CUresult stream_resolve(CUstream handle, struct stream **result);
struct stream *stream_default(struct context *context);
void streams_forget_context(struct context *context);
void events_forget_context(struct context *context);
// Puts an operation where the stream's operations go: a graph under capture, or the queue.
CUresult stream_submit(struct stream *stream, const struct operation *operation);
bool operations_append(struct operations *operations, const struct operation *operation);
void operations_free(struct operations *operations);
struct graph *graph_new(enum object_type type);
void graph_delete(struct graph *graph);

// --- stream capture (capture.c)
void capture_invalidate(struct capture *capture);
CUresult capture_forbids_unsafe(void);				 // calls that could wait, such as cuMemAlloc
CUresult capture_forbids_context(const struct context *context); // calls that wait for the context
CUresult capture_forbids_legacy(const struct context *context);	 // work on the legacy stream
CUresult capture_join(struct stream *stream, struct event *event);
void capture_delete(struct capture *capture);
void captures_forget_graph(struct graph *graph);
void captures_forget_stream(struct stream *stream);

// --- pools (pool.c)
struct pool *pool_default(int device);

#endif
