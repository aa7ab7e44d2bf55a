/* Contents on disk come back bit for bit; meanwhile each paused segment has one private file, and afterwards there is
 * none. A directory that cannot be used is an error before anything is lost. Called as: disk DIRECTORY */
#include "host.h"

#include <sys/stat.h>

static const char *directory;

static int files(bool private)
{
	DIR *opened = opendir(directory);
	CHECK(opened);
	int count = 0;
	for (struct dirent *entry; (entry = readdir(opened));) {
		if (entry->d_name[0] == '.')
			continue;
		struct stat status;
		char path[4096];
		snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
		EXPECT(stat(path, &status), 0);
		if (private)
			EXPECT(status.st_mode & 0777, 0600);
		count++;
	}
	closedir(opened);
	return count;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	directory = argv[1];
	enum { COUNT = 4 };
	void *segment[COUNT];
	size_t before = free_bytes();
	tms_set_disk_backup_dir(directory);
	for (unsigned i = 0; i < COUNT; i++) {
		tms_set_enable_disk_backup(true);
		segment[i] = pausable((i + 1) * 3 * MIB, i % 2 ? "odd" : "even", false);
		tms_set_enable_disk_backup(false);
		fill(segment[i], (i + 1) * 3 * MIB, i);
	}
	void *host = pausable(MIB, "odd", true);
	fill(host, MIB, 99);
	for (int cycle = 0; cycle < 5; cycle++) {
		EXPECT(tms_pause(NULL), 0);
		EXPECT(free_bytes(), before);
		EXPECT(files(true), COUNT);
		CHECK(!tms_get_cpu_backup_pointer(segment[0], 4));
		EXPECT(tms_resume("odd"), 0);
		EXPECT(tms_trim(), 0); /* waits for a slow file system */
		EXPECT(files(true), COUNT / 2);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(tms_trim(), 0);
		EXPECT(files(true), 0);
		for (unsigned i = 0; i < COUNT; i++)
			CHECK(filled(segment[i], (i + 1) * 3 * MIB, i));
		CHECK(filled(host, MIB, 99));
	}
	size_t during = free_bytes();
	tms_set_disk_backup_dir("/proc/no such place");
	EXPECT(tms_pause(NULL), 304);
	CHECK(strstr(tms_last_error(), "/proc/no such place"));
	EXPECT(free_bytes(), during);
	for (unsigned i = 0; i < COUNT; i++)
		CHECK(filled(segment[i], (i + 1) * 3 * MIB, i));
	tms_set_disk_backup_dir(directory);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_pause(NULL), 0);
	for (int i = 0; i < COUNT; i++)
		EXPECT(cudaFree(segment[i]), 0); /* while paused: the files go */
	EXPECT(cudaFree(host), 0);
	EXPECT(tms_trim(), 0);
	EXPECT(files(true), 0);
	EXPECT(free_bytes(), before);
	return 0;
}
