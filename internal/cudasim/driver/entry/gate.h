// The gate that every driver function passes. Entry points check what they are given, in the driver's order and
// with its codes, and leave the work to the layers below.
#ifndef CUDASIM_GATE_H
#define CUDASIM_GATE_H

#include "abi/api.h"
#include "abi/functions.h"
#include "execution/execution.h"

enum driver_function {
#define X(name, symbol, since, needs) FN_##symbol,
	DRIVER_FUNCTIONS(X)
#undef X
		FUNCTION_COUNT
};
// Counts the call, applies a planned failure, checks what the function needs. Takes the lock.
CUresult gate_enter(enum driver_function function);
void gate_leave(const int *guard);
#define ENTER(symbol)                                                                                        \
	CUresult entered_ = gate_enter(FN_##symbol);                                                         \
	if (entered_ != CUDA_SUCCESS)                                                                        \
		return entered_;                                                                             \
	int guard_ __attribute__((cleanup(gate_leave), unused)) = 0

void gate_start(void); // reads the environment, once after each gate_reset
bool gate_reset(void); // false: it had not been started
uint64_t gate_calls(const char *name); // of a function by either name; UINT64_MAX if there is none
void primaries_reset(void);	       // context.c: as if no primary context had ever been

#endif
