// The memory layer: addresses, physical memory, mappings, pinned host memory. It knows no context, stream or queue: the
// caller has waited for whatever may use the memory.
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include "base/simulator.h"

// Physical memory: a range of its device's memfd. Offsets only ascend, so fresh memory is zero by construction and
// neighbours merge into one VMA.
struct block {
	int device;
	uint64_t offset, size;
	int references; // a handle, each mapping
	struct allocation *handle;
	CUmemAllocationProp prop;
	int foreign_fd; // the memfd of another process, or with outlives the memory's file, else -1
	void *view;	// imported: all of it, without access, since a process has no descriptor of what it imports
	bool shared; // exported or imported
	bool shown; // mapped, now or earlier
	bool outlives; // foreign_fd alone is the memory
	bool imported; // from a descriptor of another process, or of memory that outlives its maker
	bool host; // memory of the host, by cuMemCreate; device is 0
	uint64_t multicast;   // bytes of a multicast object, which has no memory, else 0
	struct block *member; // the block that is bound to it
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
	bool managed; // by cuMemAllocManaged
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

struct allocation { // a handle of cuMemCreate
	struct object object;
	struct block *block;
	int references;
};

struct pool {
	struct object object;
	int device;
	uint64_t threshold, used, high;
	int reuse[3];
	bool ended; // its owner destroyed it while memory was in use
	bool exportable;
};

struct device {
	uint64_t total, used; // used by this process
	int fd; // memfd, -1 until needed
	uint64_t file_size; // its size
	uint64_t next_offset;
	uint64_t heap, heap_end;    // addresses for cuMemAlloc not handed out yet
	struct tree free_addresses; // stacks of freed cuMemAlloc ranges, keyed by size
	struct pool *pool, *current; // the default; the pool for cuMemAllocAsync, or NULL for the default
};

enum { PAGE = 4096 }; // of the host; cuMemAlloc counts in them

struct memory {
	struct device devices[MAX_DEVICES];
	struct tree mappings, reservations, heaps, host;
};
extern struct memory memory;
void memory_start(void); // with the settings as they are
void memory_drop_mappings(void); // and pinned host memory
void memory_drop(void);	       // the rest, when no handle is left

// --- addresses (address.c)
bool addresses_clear(uint64_t address, uint64_t size); // PROT_NONE again
// Reserves addresses, at the hint if they are free, and notes them among the ranges.
bool addresses_reserve(struct tree *ranges, uint64_t hint, uint64_t size, uint64_t alignment, uint64_t *address);
void ballast_take(void); // keeps spare kernel mappings, to clear addresses at their limit

// --- how much each process uses (budget.c)
CUresult budget_join(void); // joins the processes that share the devices, if the settings say so
void budget_leave(void);
void budget_forget(void); // in a forked child: the member is its parent's
bool budget_take(int device, uint64_t size); // false: it does not fit
void budget_give(int device, uint64_t size);
uint64_t budget_free(int device);
int budget_outlive(int device, uint64_t size); // a locked file for memory that was taken, or -1
// Lends another process's memory, by its number and CUDASIM_SHARED, to others, or claims it again at these places
// (NULL: lends). CUDA_ERROR_OUT_OF_MEMORY: others have it.
CUresult budget_lend(int process, const char *shared, const int *places);

// --- physical memory (block.c)
CUresult block_new(int device, uint64_t size, struct block **block);
// Where a block is, for another process, and its name there; and that process's way to it.
struct exported {
	int process, fd, device;
	uint64_t id, offset, size;
};
struct exported block_export(const struct block *block, uint64_t id);
CUresult block_import(const struct exported *from, struct block **block);
int block_outlive(struct block *block); // for a descriptor: memory that needs no process, or -1
CUresult block_adopt(int descriptor, int device, uint64_t size, struct block **block); // from such a descriptor
CUresult block_view(int descriptor, int device, uint64_t size, struct block **block); // without one of its own
void block_shared(struct block *block); // notes that other processes share it, until its release
void block_release(struct block *block);

// --- blocks at addresses (mapping.c)
CUresult mapping_new(uint64_t address, uint64_t size, int protection, struct block *block, struct mapping **result);
void mapping_delete(struct mapping *mapping); // the caller clears the addresses
struct mapping *mapping_at(uint64_t address);
struct mapping *mapping_from(uint64_t address); // the one that begins there
// Goes through mappings side by side, from the one that begins at the address.
#define EACH_MAPPING(mapping, address, end) \
	for (struct mapping *mapping = mapping_from(address); mapping && mapping->node.key < (end); \
	     mapping = mapping_from(mapping->node.key + mapping->size))
int access_to_protection(uint32_t access);
// The memory that a device may touch: handles mapped for it, and cuMemAlloc's memory on the devices of the set.
struct reach {
	int device;
	uint32_t devices;
};
struct reach copy_reach(int device); // copies are staged where there is no peer access
enum place { PLACE_HOST, PLACE_DEVICE, PLACE_FORBIDDEN, PLACE_UNMAPPED /* reserved, and nothing is there */ };
enum place memory_place(struct reach reach, uint64_t address, uint64_t size, bool write);
void memory_populate(uint64_t address, uint64_t size);

// --- allocations of cuMemAlloc's kind (heap.c)
CUresult memory_show(struct block *block, uint64_t context, uint64_t size, struct pool *pool,
		     uint64_t *address); // takes the block
CUresult memory_allocate(int device, uint64_t context, uint64_t size, struct pool *pool, uint64_t *address);
CUresult memory_free(uint64_t address);
void memory_forget_context(uint64_t context);
void memory_forget_addresses(struct device *device); // freed, kept for use again

// --- host memory (host.c)
struct host_range *host_range_new(uint64_t address, uint64_t size, unsigned flags, uint64_t context,
				  bool registered);
void host_range_delete(struct host_range *range);
struct host_range *host_range_at(uint64_t address);
bool host_pinned(uint64_t address, uint64_t size);
void host_forget_context(uint64_t context); // 0: all

#endif
