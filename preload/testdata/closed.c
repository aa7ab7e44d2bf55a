/* Backups and descriptors: between calls the library has no descriptor but the lock on a directory with files in it. A
 * host that closes all it finds, and uses the numbers for its own files, loses nothing. Called as: closed DIRECTORY */
#include "host.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { MOST = 64, BYTES = 4096 };

/* What a descriptor above 2 is: "" if it is closed, NULL if it is the simulated device's memory, which a host needs. */
static const char *target(int fd)
{
	static char text[4096];
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, text, sizeof text - 1);
	text[length > 0 ? length : 0] = 0;
	return strstr(text, "cudasim") ? NULL : text;
}

static void expect_locks(const char *directory, int expected)
{
	int locks = 0;
	for (int fd = 3; fd < MOST; fd++) {
		const char *what = target(fd);
		if (!what)
			continue;
		CHECK(!strstr(what, "event") && !strstr(what, ".bak"));
		locks += strcmp(what, directory) == 0;
	}
	EXPECT(locks, expected);
}

/* Closes all descriptors, and gives their numbers to files of the host's. */
static void replace_descriptors(const char *path, bool mine[MOST])
{
	for (int fd = 3; fd < MOST; fd++) {
		mine[fd] = target(fd) != NULL;
		if (!mine[fd])
			continue;
		int opened = open(path, O_CREAT | O_RDWR, 0600);
		CHECK(opened >= 0);
		if (opened != fd) {
			EXPECT(dup2(opened, fd), fd);
			EXPECT(close(opened), 0);
		}
	}
}

static void close_own(const char *path, const bool mine[MOST])
{
	struct stat own, status;
	EXPECT(stat(path, &own), 0);
	EXPECT(own.st_size, BYTES); /* nothing was added or taken away */
	for (int fd = 3; fd < MOST; fd++) {
		if (!mine[fd])
			continue;
		EXPECT(fstat(fd, &status), 0);
		EXPECT(status.st_ino, own.st_ino);
		char block[BYTES];
		EXPECT(pread(fd, block, BYTES, 0), BYTES);
		for (int i = 0; i < BYTES; i++)
			EXPECT(block[i], 'x');
		EXPECT(close(fd), 0);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	const char *directory = argv[1];
	char own[4096], block[BYTES];
	snprintf(own, sizeof own, "%s/own", directory);
	memset(block, 'x', BYTES);
	int fd = open(own, O_CREAT | O_WRONLY, 0600);
	EXPECT(write(fd, block, BYTES), BYTES);
	EXPECT(close(fd), 0);

	tms_set_disk_backup_dir(directory);
	void *host = pausable(8 * MIB, "host", true);
	tms_set_enable_disk_backup(true);
	void *disk = pausable(8 * MIB, "disk", false), *more = pausable(4 * MIB, "more", false);
	tms_set_enable_disk_backup(false);
	for (unsigned cycle = 0; cycle < 4; cycle++) {
		bool mine[MOST], replaced = cycle % 2;
		fill(host, 8 * MIB, cycle);
		fill(disk, 8 * MIB, 10 + cycle);
		fill(more, 4 * MIB, 20 + cycle);
		EXPECT(tms_pause("host"), 0);
		expect_locks(directory, 0);
		EXPECT(tms_pause("disk"), 0);
		expect_locks(directory, 1);
		if (replaced)
			replace_descriptors(own, mine);
		EXPECT(tms_pause("more"), 0);
		expect_locks(directory, replaced ? 0 : 1); /* the new lock's number is above those looked at */
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(host, 8 * MIB, cycle));
		CHECK(filled(disk, 8 * MIB, 10 + cycle));
		CHECK(filled(more, 4 * MIB, 20 + cycle));
		if (replaced)
			close_own(own, mine);
		EXPECT(tms_trim(), 0); /* waits for work in the background */
		expect_locks(directory, 0);
	}
	EXPECT(cudaFree(host), 0);
	EXPECT(cudaFree(disk), 0);
	EXPECT(cudaFree(more), 0);
	return 0;
}
