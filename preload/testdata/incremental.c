/* Only what has changed is copied again, and the statistics count it; on a machine with one
 * device a peer backup waits in host memory. */
#include "host.h"

/* Bytes of contents that "pauses" have saved, or "resumes" brought back. */
static unsigned long long contents(const char *of)
{
	char *text = stats(), *at = strstr(text, of);
	CHECK(at && (at = strstr(at, "\"contents_bytes\":")));
	unsigned long long bytes = strtoull(at + strlen("\"contents_bytes\":"), NULL, 10);
	free(text);
	return bytes;
}

static unsigned long long pause_and_resume(void)
{
	unsigned long long saved = contents("\"pauses\""), restored = contents("\"resumes\"");
	EXPECT(tms_pause("t"), 0);
	EXPECT(tms_resume("t"), 0);
	EXPECT(contents("\"resumes\"") - restored, 8 * MIB);
	return contents("\"pauses\"") - saved;
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
	unsigned long long saved = contents("\"pauses\"");
	EXPECT(tms_discard("t"), 0);
	EXPECT(contents("\"pauses\""), saved);
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
