/* A crash of the host's own code after the library was used is the host's affair: its handler gets the signal, and
 * without one the process dies of it. */
#include "host.h"

#include <setjmp.h>

static sigjmp_buf back;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	bool early = strcmp(argv[1], "handler-before") == 0;
	if (early)
		signal(SIGSEGV, on_fault);
	void *paused = pausable(2 * MIB, "gone", false);
	EXPECT(tms_pause(NULL), 0);
	if (strcmp(argv[1], "handler-after") == 0)
		signal(SIGSEGV, on_fault);
	if (early || strcmp(argv[1], "handler-after") == 0) {
		for (int i = 0; i < 3; i++) {
			if (sigsetjmp(back, 1) == 0) {
				*(volatile char *)paused = 1; /* paused memory is out of reach */
				CHECK(!"reached");
			}
		}
		EXPECT(tms_resume(NULL), 0);
		EXPECT(cudaFree(paused), 0);
		return 0;
	}
	if (strcmp(argv[1], "abort") == 0)
		abort();
	if (strcmp(argv[1], "sent") == 0)
		raise(SIGSEGV);
	*(volatile char *)paused = 1;
	return 0;
}
