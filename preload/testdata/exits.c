/* The process ends while it is paused: nothing of its contents stays, and a child's exit takes none of the parent's.
 * Called as: exits disk|host exit|quick_exit|kill FOLDER */
#include "host.h"

/* Returns a figure of the process's memory, in bytes. */
static size_t memory_of_kind(const char *kind)
{
	FILE *opened = fopen("/proc/self/smaps_rollup", "r");
	CHECK(opened);
	char line[256];
	size_t kibibytes = 0;
	while (fgets(line, sizeof line, opened))
		if (strncmp(line, kind, strlen(kind)) == 0)
			kibibytes += strtoul(line + strlen(kind), NULL, 10);
	fclose(opened);
	return kibibytes << 10;
}

int main(int argc, char **argv)
{
	enum { BYTES = 16 * MIB };
	CHECK(argc == 4);
	bool on_disk = strcmp(argv[1], "disk") == 0;
	tms_set_disk_backup_dir(argv[3]);
	tms_set_interesting_region(true);
	CHECK(tms_set_backup(argv[1]) == 0);
	void *memory = NULL;
	EXPECT(cudaMalloc(&memory, BYTES), 0);
	tms_set_interesting_region(false);
	fill(memory, BYTES, 3);
	size_t private = memory_of_kind("Anonymous:"), shared = memory_of_kind("Pss_Shmem:");
	EXPECT(tms_pause(NULL), 0);
	EXPECT(names_in(argv[3]), 0);
	EXPECT(files_of_threads(argv[3]), on_disk);
	if (!on_disk) /* memory of the process alone ends with it */
		CHECK(memory_of_kind("Anonymous:") >= private + BYTES && memory_of_kind("Pss_Shmem:") <= shared);
	pid_t child = fork();
	if (child == 0) {
		CHECK(files_of_threads(argv[3]) == 0);
		exit(0);
	}
	EXPECT(code_of(child), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, BYTES, 3));
	EXPECT(tms_pause(NULL), 0);
	if (strcmp(argv[2], "exit") == 0)
		exit(0);
	if (strcmp(argv[2], "quick_exit") == 0)
		quick_exit(0);
	kill(getpid(), SIGKILL);
	return 1;
}
