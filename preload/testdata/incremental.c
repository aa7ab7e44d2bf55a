/* Only what has changed is copied again, and a callback gets its size; on a machine with one
 * device a peer backup waits in host memory. */
#include "host.h"

static struct {
	int calls;
	uint64_t done, total;
	char operation[16];
} seen;

static void progress(int device, const char *operation, uint64_t done, uint64_t total, void *user)
{
	EXPECT(device, 0);
	CHECK(user == &seen);
	CHECK(done <= total);
	seen.calls++;
	seen.done = done;
	seen.total = total;
	snprintf(seen.operation, sizeof seen.operation, "%s", operation);
}

static uint64_t pause_and_resume(void)
{
	memset(&seen, 0, sizeof seen);
	EXPECT(tms_pause("t"), 0);
	uint64_t done = seen.done;
	EXPECT(seen.total, done);
	CHECK(seen.calls == 0 || strcmp(seen.operation, "pause") == 0);
	EXPECT(tms_resume("t"), 0);
	CHECK(strcmp(seen.operation, "resume") == 0);
	EXPECT(seen.done, 8 * MIB);
	return done;
}

int main(void)
{
	void *p = NULL;
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(true);
	CHECK(!tms_get_enable_incremental_backup());
	tms_set_current_tag("t");
	tms_set_enable_incremental_backup(true);
	CHECK(tms_get_enable_incremental_backup());
	EXPECT(cudaMalloc(&p, 8 * MIB), 0);
	fill(p, 8 * MIB, 1);
	tms_set_progress_callback(progress, &seen);
	EXPECT(pause_and_resume(), 8 * MIB);
	EXPECT(pause_and_resume(), 0);
	unsigned one = 0;
	EXPECT(cudaMemcpy((char *)p + 3 * MIB, &one, 4, 1), 0);
	EXPECT(pause_and_resume(), 2 * MIB);
	EXPECT(cudaMemcpy(&one, (char *)p + 3 * MIB, 4, 2), 0);
	EXPECT(one, 0);
	fill(p, 8 * MIB, 1);
	EXPECT(pause_and_resume(), 2 * MIB);
	CHECK(filled(p, 8 * MIB, 1));

	/* Discarding copies nothing and gives the copy up, so that the next pause copies everything. */
	size_t before = free_bytes();
	memset(&seen, 0, sizeof seen);
	EXPECT(tms_discard("t"), 0);
	EXPECT(seen.calls, 0);
	EXPECT(tms_last_bytes(), 8 * MIB);
	EXPECT(free_bytes(), before + 8 * MIB);
	CHECK(!tms_get_cpu_backup_pointer(p, 4));
	EXPECT(tms_discard("t"), 0);
	EXPECT(tms_last_bytes(), 0);
	EXPECT(tms_resume("t"), 0);
	EXPECT(cudaMemcpy(&one, (char *)p + 3 * MIB, 4, 2), 0);
	EXPECT(one, 0);
	fill(p, 8 * MIB, 1);
	EXPECT(pause_and_resume(), 8 * MIB);
	CHECK(filled(p, 8 * MIB, 1));
	tms_set_progress_callback(NULL, NULL);
	EXPECT(cudaFree(p), 0);

	EXPECT(tms_set_backup("peer"), 0);
	EXPECT(cudaMalloc(&p, 3 * MIB), 0);
	fill(p, 3 * MIB, 2);
	EXPECT(tms_pause("t"), 0);
	CHECK(tms_get_cpu_backup_pointer(p, 3 * MIB));
	EXPECT(tms_resume("t"), 0);
	CHECK(filled(p, 3 * MIB, 2));
	EXPECT(cudaFree(p), 0);
	return 0;
}
