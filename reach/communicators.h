/* communicators has what libtms_reach.so tells libtms.so of NCCL (gate.h), for Go too. */
#ifndef REACH_COMMUNICATORS_H
#define REACH_COMMUNICATORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gate_communicator {
	int version;	      /* of its NCCL, as 22907; 0: unknown */
	bool suspended, busy; /* by begin; or begin has not come back */
	bool lost;	      /* it was suspended, and could not be resumed */
	int code;	      /* of a suspend or resume that has failed, an ncclResult_t; else 0 */
	const char *obstacle; /* why it cannot be suspended; NULL: it can, or is */
	bool apart;	      /* some of its ranks are in other processes; that is all that is in the way of it */
	uint64_t clique;      /* the same for all ranks, and for no other communicator of several processes */
	int ranks, here;      /* all, and those in this process */
	uint64_t total, suspendable; /* bytes, as ncclCommMemStats has them; 0: unknown */
};

/* What the ranks of a communicator count alike: its collectives (from and to are -1), or what one rank sends another. */
struct gate_sequence {
	uint64_t clique;
	int ranks, from, to;
	uint64_t number; /* begun here; or that more than so many are not to be begun */
	bool wanted;	 /* somebody waits for more */
};

/* Memory that is registered with a communicator, or may be: it was used in a CUDA graph. */
struct gate_registration {
	uintptr_t address;
	size_t size; /* SIZE_MAX: there is more than could be noted */
	const char *call, *undone_by; /* NULL: it was used */
	int version;
};

#endif
