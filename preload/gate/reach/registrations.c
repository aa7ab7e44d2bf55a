/* registrations notes the memory that the program registered with NCCL, a network card or GPUDirect Storage, and what
 * NCCL may have registered by itself: the buffers of collectives captured into CUDA graphs. nccl.c and rdma.c report
 * them; libtms.so queries them (gate.h). */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct registration {
	_Atomic int state;
	void *comm, *handle, **where;
	pid_t thread;
	struct library *library;
	uintptr_t address;
	size_t size;
	const struct registrar *by;
} registrations[4096];
static _Atomic size_t registrations_used; /* how many are looked at */
/* There was no place for a registration by this, of this NCCL. */
static _Atomic(const struct registrar *) unnoted;
static _Atomic(struct library *) unnoted_library;
TAKE(registration)

static const struct registrar by_communicator = {NULL, "ncclCommRegister", "ncclCommDeregister"},
			      by_window = {NULL, "ncclCommWindowRegister", "ncclCommWindowDeregister"};

static struct registration *take_for(const struct registrar *by, struct library *library, uintptr_t address,
				     size_t size)
{
	struct registration *r = take_registration();
	if (!r) {
		atomic_store(&unnoted_library, library);
		atomic_store(&unnoted, by);
		return NULL;
	}
	r->by = by, r->library = library, r->address = address, r->size = size;
	return r;
}

static bool is_pausable(uintptr_t address, size_t size)
{
	return size && (reach_is_pausable(address) || reach_is_pausable(address + size - 1));
}

HIDDEN void memory_noted(const struct registrar *by, uintptr_t address, size_t size, void *handle)
{
	if (!is_pausable(address, size))
		return;
	memory_forgotten(by->with, handle); /* one library's function may call another */
	memory_noted_of((void *)by->with, by, address, size, handle);
}

HIDDEN void memory_noted_of(void *of, const struct registrar *by, uintptr_t address, size_t size, void *handle)
{
	struct registration *r = is_pausable(address, size) ? take_for(by, NULL, address, size) : NULL;
	if (!r)
		return;
	r->comm = of, r->handle = handle, r->where = NULL;
	atomic_store(&r->state, LIVE);
}

HIDDEN void memory_forgotten(const char *with, void *handle)
{
	memory_deregistered(DONE, (void *)with, handle);
}

HIDDEN int memory_registered(int code, struct library *library, void *comm, void *memory, size_t size, void **where,
			     bool window)
{
	const uintptr_t address = (uintptr_t)memory;
	if (code != DONE || !inside_is_outermost() || !where || !is_pausable(address, size))
		return code;
	bool later = window && inside_a_group();
	if (!later && !*where)
		return code; /* NCCL has decided not to register it */
	struct registration *r = take_for(window ? &by_window : &by_communicator, library, address, size);
	if (!r)
		return code;
	r->comm = comm, r->where = where, r->handle = later ? NULL : *where, r->thread = (pid_t)syscall(SYS_gettid);
	atomic_store(&r->state, later ? WAITING : LIVE);
	return code;
}

HIDDEN int memory_deregistered(int code, void *comm, void *handle)
{
	if (code != DONE)
		return code;
	for EACH (r, registration) {
		int live = LIVE;
		if (atomic_load(&r->state) == LIVE && r->comm == comm && r->handle == handle &&
		    atomic_compare_exchange_strong(&r->state, &live, FREE))
			break;
	}
	return code;
}

/* Drops all registrations of a communicator. */
HIDDEN void memory_goes_with(void *comm)
{
	for EACH (r, registration)
		if (atomic_load(&r->state) == LIVE && r->comm == comm)
			atomic_store(&r->state, FREE);
}

/* The thread's outermost group has ended. */
HIDDEN void memory_group_ended(bool good)
{
	const pid_t self = (pid_t)syscall(SYS_gettid);
	for EACH (r, registration) {
		if (atomic_load(&r->state) != WAITING || r->thread != self)
			continue;
		r->handle = good ? *r->where : NULL;
		atomic_store(&r->state, r->handle ? LIVE : FREE);
	}
}

/* Buffers of collectives that were captured: NCCL may register them with the graph, unless NCCL_GRAPH_REGISTER is 0
 * (its user guide, "User Buffer Registration"). The first are enough for a warning. */
static struct captured {
	_Atomic uintptr_t address;
	const char *call;
	struct library *library;
} captured[256];
static _Atomic size_t captured_count;

HIDDEN bool memory_captured(struct library *library, const char *call, uintptr_t first, uintptr_t second,
			    uintptr_t stream)
{
	typedef int is_capturing(uintptr_t, int *);
	static _Atomic(is_capturing *) ask;
	const char *setting = getenv("NCCL_GRAPH_REGISTER");
	int active = 0;
	if (!atomic_load(&ask))
		atomic_store(&ask, (is_capturing *)reach_next("cuStreamIsCapturing"));
	if (!stream || !atomic_load(&ask) || atomic_load(&ask)(stream, &active) != 0 || !active)
		return false;
	if (atomic_load(&captured_count) >= sizeof captured / sizeof *captured || (setting && atoi(setting) == 0))
		return true;
	size_t at = atomic_fetch_add(&captured_count, 2);
	for (size_t i = at; i < at + 2 && i < sizeof captured / sizeof *captured; i++) {
		captured[i].call = call, captured[i].library = library;
		atomic_store(&captured[i].address, i == at ? first : second);
	}
	return true;
}

HIDDEN bool nccl_look_at_memory(size_t *cursor, struct gate_registration *to)
{
	enum { REGISTRATIONS = sizeof registrations / sizeof *registrations, BUFFERS = sizeof captured / sizeof *captured };
	for (; *cursor < REGISTRATIONS; (*cursor)++) {
		const struct registration *r = &registrations[*cursor];
		if (atomic_load(&r->state) != LIVE)
			continue;
		*to = (struct gate_registration){
			.address = r->address,
			.size = r->size,
			.with = r->by->with,
			.call = r->by->call,
			.undone_by = r->by->undone_by,
			.version = r->library ? nccl_version(r->library) : 0,
		};
		(*cursor)++;
		return true;
	}
	for (; *cursor < REGISTRATIONS + BUFFERS; (*cursor)++) {
		const struct captured *c = &captured[*cursor - REGISTRATIONS];
		uintptr_t address = atomic_load(&c->address);
		if (!address)
			continue;
		*to = (struct gate_registration){
			.address = address, .size = 1, .call = c->call, .version = nccl_version(c->library)};
		(*cursor)++;
		return true;
	}
	const struct registrar *by = atomic_load(&unnoted);
	struct library *library = atomic_load(&unnoted_library);
	if (!by || *cursor > REGISTRATIONS + BUFFERS)
		return false;
	*to = (struct gate_registration){.size = SIZE_MAX, .with = by->with, .call = by->call, .undone_by = by->undone_by,
					 .version = library ? nccl_version(library) : 0};
	(*cursor)++;
	return true;
}
