/* registrations notes the memory that the program registered with NCCL, and what NCCL may have registered by itself:
 * the buffers of collectives captured into CUDA graphs. nccl.c reports both; libtms.so queries them (gate.h). */
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
	bool window;
} registrations[4096];
static _Atomic size_t registrations_used; /* how many are looked at */
static _Atomic(struct library *) unnoted;  /* there was no place for a registration of this */
TAKE(registration)

HIDDEN int memory_registered(int code, struct library *library, void *comm, void *memory, size_t size, void **where,
			     bool window)
{
	const uintptr_t address = (uintptr_t)memory;
	if (code != DONE || !nccl_is_outermost() || !where ||
	    !(reach_is_pausable(address) || reach_is_pausable(address + size - 1)))
		return code;
	bool later = window && nccl_in_group();
	if (!later && !*where)
		return code; /* NCCL has decided not to register it */
	struct registration *r = take_registration();
	if (!r) {
		atomic_store(&unnoted, library);
		return code;
	}
	r->comm = comm, r->where = where, r->handle = later ? NULL : *where, r->thread = (pid_t)syscall(SYS_gettid);
	r->library = library, r->address = address, r->size = size, r->window = window;
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
			.call = r->window ? "ncclCommWindowRegister" : "ncclCommRegister",
			.undone_by = r->window ? "ncclCommWindowDeregister" : "ncclCommDeregister",
			.version = nccl_version(r->library),
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
	struct library *library = atomic_load(&unnoted);
	if (!library || *cursor > REGISTRATIONS + BUFFERS)
		return false;
	*to = (struct gate_registration){.size = SIZE_MAX, .call = "ncclCommRegister", .undone_by = "ncclCommDeregister",
					 .version = nccl_version(library)};
	(*cursor)++;
	return true;
}
