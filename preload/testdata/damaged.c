/* Files of a disk backup that are changed: the contents are lost, and the error says whose and why; everything else can
 * be resumed, and the memory freed. Called as: damaged DIRECTORY */
#include "host.h"

#include <fcntl.h>
#include <sys/stat.h>

static char file[4096]; /* of the segment paused last */

static void find_file(const char *directory)
{
	DIR *opened = opendir(directory);
	CHECK(opened);
	file[0] = 0;
	for (struct dirent *entry; (entry = readdir(opened));) {
		if (!strstr(entry->d_name, ".bak"))
			continue;
		CHECK(!file[0]);
		snprintf(file, sizeof file, "%s/%s", directory, entry->d_name);
	}
	CHECK(file[0]);
	closedir(opened);
}

static void *on_disk(const char *tag, unsigned seed)
{
	tms_set_enable_disk_backup(true);
	void *segment = pausable(4 * MIB, tag, false);
	tms_set_enable_disk_backup(false);
	fill(segment, 4 * MIB, seed);
	return segment;
}

static void delete(void)
{
	EXPECT(unlink(file), 0);
}

static void cut(void)
{
	EXPECT(truncate(file, 3 * MIB), 0);
}

static void replace(void)
{
	EXPECT(unlink(file), 0);
	int fd = open(file, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0);
	EXPECT(ftruncate(fd, 4 * MIB), 0);
	close(fd);
}

static void make_unreadable(void)
{
	if (geteuid() == 0) /* as servers do: afterwards only the owner's files can be read */
		EXPECT(setresuid(65534, 65534, 65534), 0);
	else
		EXPECT(chmod(file, 0), 0);
}

static const struct {
	const char *words;
	void (*happens)(void);
} damages[] = {
	{"deleted", delete},
	{"cut to 3145728 of 4194304 bytes", cut},
	{"another has its name", replace},
	{"permission denied", make_unreadable}, /* last, because it cannot be undone */
};

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	const char *directory = argv[1];
	tms_set_disk_backup_dir(directory);
	void *other = pausable(4 * MIB, "other", true);
	fill(other, 4 * MIB, 99);
	size_t before = free_bytes();
	for (unsigned i = 0; i < sizeof damages / sizeof *damages; i++) {
		void *segment = on_disk("precious", i);
		EXPECT(tms_pause(NULL), 0);
		find_file(directory);
		damages[i].happens();
		for (int tries = 0; tries < 2; tries++) {
			EXPECT(tms_resume(tries ? NULL : "precious"), 301);
			const char *words = tms_last_error();
			CHECK(strstr(words, "contents are lost"));
			CHECK(strstr(words, "tag \"precious\""));
			CHECK(strstr(words, file));
			CHECK(strstr(words, damages[i].words));
			CHECK(strstr(words, "free the memory"));
			CHECK(!strstr(words, "Nothing is lost") && !strstr(words, "free host memory"));
		}
		EXPECT(tms_resume("other"), 0);
		CHECK(filled(other, 4 * MIB, 99));
		EXPECT(cudaFree(segment), 0);
		EXPECT(tms_resume(NULL), 0);
		EXPECT(free_bytes(), before);
		if (damages[i].happens == replace) { /* another's file stays */
			struct stat status;
			EXPECT(stat(file, &status), 0);
			EXPECT(unlink(file), 0);
		}
	}
	return 0;
}
