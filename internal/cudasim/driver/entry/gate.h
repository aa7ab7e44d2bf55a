// The gate that every driver function passes. Entry points check their arguments in the driver's order and with its
// codes, and leave the work to the layers below.
#ifndef CUDASIM_GATE_H
#define CUDASIM_GATE_H

#include "abi/api.h"
#include "execution/execution.h"

enum driver_function {
#define X(since, needs, name, version, ...) FN_##name##version,
	DRIVER_FUNCTIONS(X, X, X)
#undef X
		FUNCTION_COUNT
};
// Counts the call, applies a planned failure, checks what the function needs. Takes the lock.
CUresult gate_enter(enum driver_function function);
void gate_leave(const int *guard);

// Defines the exported functions of a row of api.h. A file of entry/ ends with these, after what the rows call.
#define DEFINE(since, needs, name, version, parameters, ...) \
	DEFINE_AS(name##version, , false, parameters, __VA_ARGS__)
#define DEFINE_PTDS(since, needs, name, version, parameters, ...) \
	DEFINE_AS(name##version, , false, parameters, __VA_ARGS__) \
	DEFINE_AS(name##version, _ptds, true, parameters, __VA_ARGS__)
#define DEFINE_PTSZ(since, needs, name, version, parameters, ...) \
	DEFINE_AS(name##version, , false, parameters, __VA_ARGS__) \
	DEFINE_AS(name##version, _ptsz, true, parameters, __VA_ARGS__)
#define DEFINE_AS(symbol, suffix, is_own, parameters, ...) \
	CUresult symbol##suffix parameters \
	{ \
		TRY(gate_enter(FN_##symbol)); \
		int guard __attribute__((cleanup(gate_leave), unused)) = 0; \
		const bool own __attribute__((unused)) = is_own; \
		return __VA_ARGS__; \
	}
#define MINE(stream) (own && !(stream) ? CU_STREAM_PER_THREAD : (stream))
#define GIVES(pointer, value) ((pointer) ? (*(pointer) = (value), CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)

CUresult stream_wait(CUstream handle); // cuStreamSynchronize

void gate_start(void); // reads the environment, once after each gate_reset
bool gate_reset(void); // false: it had not started
uint64_t gate_calls(const char *name); // of a function by either name; UINT64_MAX if there is none
void primaries_reset(void);	       // context.c: as if no primary context had ever been

#endif
