// The bottom layer: the state that all others share, behind one lock that a driver function holds to its end.
#ifndef CUDASIM_SIMULATOR_H
#define CUDASIM_SIMULATOR_H

#include <pthread.h>
#include <stdbool.h>

#include "abi/types.h"
#include "base/object.h"

enum { MAX_DEVICES = 16, CONTEXT_STACK = 64, NOWHERE = -1 };

struct settings { // the environment's
	int device_count; // that this process sees
	int machine_count;
	int shown_count; // that NVML shows
	int places[MAX_DEVICES]; // which of the machine's devices each of its own is; NOWHERE past the last
	int shown[MAX_DEVICES]; // and each of NVML's
	uint64_t memory, granularity;
	uint64_t context, code; // bytes of a device that a context takes, and a kernel at its first launch there
	bool peers; // devices can access one another's memory
	bool uncounted; // memory that outlives its process can be made without a name to share by
	bool integrated; // devices say that their memory is the host's
	char names[256]; // of the devices, as cuDeviceGetName has them, with a comma between; the last is for the rest
	char shared[65]; // the name under which processes share the devices, or empty
};

enum kind { HANDLES, RESERVATIONS, MAPPINGS, ALLOCATIONS, REGISTRATIONS, HOST_ALLOCATIONS, KINDS };

struct statistics {
	struct amount {
		uint64_t count, bytes;
	} amounts[KINDS];
	uint64_t objects[OBJECT_TYPES];
};

struct simulator {
	pthread_mutex_t lock;
	bool initialized, forked;
	unsigned epoch; // counts cudasim_reset: thread-local state from before is void
	struct settings settings;
	uint64_t next_id; // of mappings
	struct tree objects;
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
uint64_t nanoseconds(void); // of a clock that only goes forward

void tally(enum kind kind, int more, uint64_t bytes); // more: 1 or -1
void settings_read(void);
bool device_valid(CUdevice device);
CUresult device_check(CUdevice device, const void *result); // of a call that asks for something of a device
struct device_name {
	char text[64];
};
struct device_name device_name(int place); // of the machine's device of this number
void uuid_write(CUuuid *uuid, int place); // of the GPU
void part_uuid_write(CUuuid *uuid, int place); // of the part, where the device is a part of a GPU (MIG)
struct uuid_text {
	char text[48];
};
struct uuid_text uuid_text(const char *kind, const CUuuid *uuid); // as nvidia-smi writes it, after GPU- or MIG-
bool peers(CUdevice device, CUdevice other); // whether one can get access to the other
void sim_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Returns early from a function with the error of another step.
#define TRY(step)                                                                                            \
	do {                                                                                                 \
		CUresult tried_ = (step);                                                                    \
		if (tried_ != CUDA_SUCCESS)                                                                  \
			return tried_;                                                                       \
	} while (0)

#endif
