/* The process ends while its contents are in files: none of them stays, and a child's exit takes none of the parent's.
 * Called as: exits exit|quick_exit FOLDER */
#include "host.h"

static int files(const char *folder)
{
	int count = 0;
	DIR *opened = opendir(folder);
	CHECK(opened);
	for (struct dirent *entry; (entry = readdir(opened));)
		count += strstr(entry->d_name, ".bak") != NULL;
	closedir(opened);
	return count;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	tms_set_disk_backup_dir(argv[2]);
	tms_set_interesting_region(true);
	CHECK(tms_set_backup("disk") == 0);
	void *memory = NULL;
	EXPECT(cudaMalloc(&memory, 2 * MIB), 0);
	tms_set_interesting_region(false);
	fill(memory, 2 * MIB, 3);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(files(argv[2]), 1);
	pid_t child = fork();
	if (child == 0)
		exit(0);
	EXPECT(code_of(child), 0);
	EXPECT(files(argv[2]), 1);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, 2 * MIB, 3));
	EXPECT(tms_pause(NULL), 0);
	EXPECT(files(argv[2]), 1);
	if (strcmp(argv[1], "exit") == 0)
		exit(0);
	quick_exit(0);
}
