/* Coroutines on stacks of 16 KiB allocate, use and free from the very first call on, and switch between these calls. */
#include "host.h"

#include <ucontext.h>

enum { COROUTINES = 8, ROUNDS = 4, STACK = 16 << 10, GUARD = 64 << 10 };
static ucontext_t back, coroutine[COROUTINES];
static bool ended[COROUTINES];

static void body(int id)
{
	static unsigned char there[COROUTINES];
	for (int round = 0; round < ROUNDS; round++) {
		void *memory;
		EXPECT(cudaMalloc(&memory, MIB), 0);
		EXPECT(cudaMemset(memory, id + round, MIB), 0);
		swapcontext(&coroutine[id], &back);
		EXPECT(cudaMemcpy(&there[id], (char *)memory + MIB - 1, 1, 2), 0);
		EXPECT(there[id], id + round);
		EXPECT(cudaFree(memory), 0);
	}
	ended[id] = true;
}

static void prepare(int id)
{
	char *stack = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stack != MAP_FAILED && mprotect(stack, GUARD, PROT_NONE) == 0);
	EXPECT(getcontext(&coroutine[id]), 0);
	coroutine[id].uc_stack = (stack_t){.ss_sp = stack + GUARD, .ss_size = STACK};
	coroutine[id].uc_link = &back;
	makecontext(&coroutine[id], (void (*)(void))body, 1, id);
}

int main(void)
{
	for (int i = 0; i < COROUTINES; i++)
		prepare(i);
	for (int left = COROUTINES; left > 0;) {
		left = 0;
		for (int i = 0; i < COROUTINES; i++) {
			if (!ended[i])
				EXPECT(swapcontext(&back, &coroutine[i]), 0);
			left += !ended[i];
		}
	}
	return 0;
}
