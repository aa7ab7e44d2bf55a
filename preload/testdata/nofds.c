/* The host has no descriptor left when the library is first used, and when it waits and reports: it gets codes, and
 * contents are kept. */
#include "host.h"

#include <sys/resource.h>

static void report(int device, const char *operation, uint64_t done, uint64_t total, void *user)
{
	(void)device, (void)operation, (void)done, (void)total, (void)user;
}

int main(void)
{
	void *plain = NULL, *hog = NULL;
	int spent[64], count = 0;
	EXPECT(cudaMalloc(&plain, MIB), 0); /* the driver has its own by now */
	EXPECT(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}), 0);
	while (count < 64 && (spent[count] = dup(0)) >= 0)
		count++;
	EXPECT(errno, EMFILE);

	/* The simulator must have the descriptors that it needs: one for each handle. */
	close(spent[--count]);
	void *memory = pausable(8 * MIB, "h", true);
	fill(memory, 8 * MIB, 1);
	tms_set_progress_callback(report, NULL);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume_within(NULL, 0.2), 0);
	EXPECT(tms_pause(NULL), 0);
	/* Others take all of the memory: a resume waits for it, in vain. */
	EXPECT(cudaMalloc(&hog, free_bytes()), 0);
	EXPECT(tms_resume_within(NULL, 0.3), 2);
	EXPECT(cudaFree(hog), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, 8 * MIB, 1));
	EXPECT(tms_prepare(NULL, true), 0);
	EXPECT(tms_trim(), 0);
	/* Not even one is left: an operation that needs one says so, and nothing is lost. */
	EXPECT(tms_pause(NULL), 0);
	spent[count++] = dup(0);
	int code = tms_resume(NULL);
	CHECK(code == 0 || code == 2 || code == 304 || code == 999);
	close(spent[--count]);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, 8 * MIB, 1));
	return 0;
}
