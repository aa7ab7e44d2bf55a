/* descriptors has those that alone keep contents on a GPU during a move (vmm/backup/peer). A forked child closes them:
 * otherwise the memory would not be free before the child ends. */
#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <unistd.h>

enum { WORD = 64, WORDS = 1024 };
static _Atomic uint64_t noted[WORDS];

static void close_in_child(void)
{
	for (int word = 0; word < WORDS; word++)
		for (uint64_t bits = atomic_exchange(&noted[word], 0); bits; bits &= bits - 1)
			close(word * WORD + __builtin_ctzll(bits));
}

static void watch(void)
{
	fork_notify(NULL, NULL, close_in_child);
}

HIDDEN bool descriptor_note(int descriptor, bool made)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, watch);
	if (descriptor < 0 || descriptor >= WORD * WORDS)
		return false;
	uint64_t bit = UINT64_C(1) << descriptor % WORD;
	if (made)
		atomic_fetch_or(&noted[descriptor / WORD], bit);
	else
		atomic_fetch_and(&noted[descriptor / WORD], ~bit);
	return true;
}
