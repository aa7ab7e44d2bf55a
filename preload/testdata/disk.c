/* Backups on disk. Called as: disk contents|closed|alone|unkept DIRECTORY, or: disk unwritable DIRECTORY WORDS [set] */
#include "host.h"

#include <stddef.h>

static const char *directory, *words;
static bool set;

static void *on_disk(size_t size, const char *tag, unsigned seed)
{
	tms_set_enable_disk_backup(true);
	void *segment = pausable(size, tag, false);
	tms_set_enable_disk_backup(false);
	fill(segment, size, seed);
	return segment;
}

/* Counts the files in the directory that threads have open. The thread that keeps files has a table of its own. */
static int files(void)
{
	EXPECT(names_in(directory), 0);
	return files_of_threads(directory);
}

/* Contents on disk come back bit for bit; while they are paused, one file that has no name keeps them, and afterwards
 * there is none. A directory that cannot be used is an error before anything is lost. */
static void contents(void)
{
	enum { COUNT = 4 };
	void *segment[COUNT];
	size_t before = free_bytes();
	tms_set_disk_backup_dir(directory);
	for (unsigned i = 0; i < COUNT; i++)
		segment[i] = on_disk((i + 1) * 3 * MIB, i % 2 ? "odd" : "even", i);
	void *host = kept_memory(MIB, "odd", 99);
	for (int cycle = 0; cycle < 5; cycle++) {
		EXPECT(tms_pause(NULL), 0);
		EXPECT(free_bytes(), before);
		EXPECT(files(), 1);
		CHECK(!tms_get_cpu_backup_pointer(segment[0], 4));
		EXPECT(tms_resume("odd"), 0);
		EXPECT(tms_trim(), 0); /* waits for a slow file system */
		EXPECT(files(), 1); /* has the others */
		EXPECT(tms_resume(NULL), 0);
		EXPECT(tms_trim(), 0);
		EXPECT(files(), 0);
		for (unsigned i = 0; i < COUNT; i++)
			CHECK(filled(segment[i], (i + 1) * 3 * MIB, i));
		CHECK(filled(host, MIB, 99));
	}
	size_t during = free_bytes();
	tms_set_disk_backup_dir("/proc/no such place");
	FAILS(tms_pause(NULL), 304, "/proc/no such place");
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
	EXPECT(files(), 0);
	EXPECT(free_bytes(), before);
}

enum { MOST = 64, BYTES = 4096 };

static void expect_no_file(void)
{
	for (int fd = 3; fd < MOST; fd++) {
		if (is_device(fd))
			continue;
		const char *what = target_of(fd);
		CHECK(!strstr(what, "event") && !strstr(what, directory));
	}
}

/* Closes all descriptors, and gives their numbers to files of the host's. */
static void replace_descriptors(const char *path, bool mine[MOST])
{
	for (int fd = 3; fd < MOST; fd++) {
		mine[fd] = !is_device(fd);
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

/* Between calls the program has no descriptor of a file with contents. A host that closes all it finds, and uses the
 * numbers for its own files, loses nothing. */
static void closed(void)
{
	char own[4096], block[BYTES];
	snprintf(own, sizeof own, "%s/own", directory);
	memset(block, 'x', BYTES);
	int fd = open(own, O_CREAT | O_WRONLY, 0600);
	EXPECT(write(fd, block, BYTES), BYTES);
	EXPECT(close(fd), 0);

	tms_set_disk_backup_dir(directory);
	void *host = pausable(8 * MIB, "host", true);
	void *disk = on_disk(8 * MIB, "disk", 0), *more = on_disk(4 * MIB, "more", 0);
	for (unsigned cycle = 0; cycle < 4; cycle++) {
		bool mine[MOST], replaced = cycle % 2;
		fill(host, 8 * MIB, cycle);
		fill(disk, 8 * MIB, 10 + cycle);
		fill(more, 4 * MIB, 20 + cycle);
		EXPECT(tms_pause("host"), 0);
		EXPECT(tms_pause("disk"), 0);
		expect_no_file();
		if (replaced)
			replace_descriptors(own, mine);
		EXPECT(tms_pause("more"), 0);
		if (!replaced)
			expect_no_file();
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(host, 8 * MIB, cycle));
		CHECK(filled(disk, 8 * MIB, 10 + cycle));
		CHECK(filled(more, 4 * MIB, 20 + cycle));
		if (replaced)
			close_own(own, mine);
		EXPECT(tms_trim(), 0); /* waits for work in the background */
		expect_no_file();
	}
	EXPECT(cudaFree(host), 0);
	EXPECT(cudaFree(disk), 0);
	EXPECT(cudaFree(more), 0);
}

/* Contents need no path: their directory is gone, others can reach the process now, it looks for sockets elsewhere, and
 * it has become another user. */
static void alone(void)
{
	char below[4096];
	snprintf(below, sizeof below, "%s/below", directory);
	tms_set_disk_backup_dir(below);
	void *segment = on_disk(4 * MIB, "t", 7);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(rmdir(below), 0);
	EXPECT(tms_serve(), 0);
	EXPECT(setenv("TMPDIR", below, 1), 0);
	if (geteuid() == 0) /* as servers do: afterwards only the owner's files could be opened */
		EXPECT(setresuid(65534, 65534, 65534), 0);
	EXPECT(prctl(PR_SET_DUMPABLE, 1), 0); /* /proc shows the process to itself */
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(segment, 4 * MIB, 7));
	EXPECT(tms_trim(), 0);
	EXPECT(files(), 0);
	EXPECT(cudaFree(segment), 0);
}

/* A sandbox allows no socket, so no thread can keep files: nothing is lost, and another backup does. */
static void unkept(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter_calls(filter, sizeof filter / sizeof *filter);
	tms_set_disk_backup_dir(directory);
	void *segment = on_disk(4 * MIB, "t", 7), *other = kept_memory(4 * MIB, "other", 8);
	for (int tries = 0; tries < 2; tries++) {
		FAILS(tms_pause("t"), 304, "cannot be held: a socket cannot be made: permission denied; call again, or have "
					   "contents wait in host memory");
		CHECK(filled(segment, 4 * MIB, 7));
	}
	PAUSE_AND_RESUME("other");
	CHECK(filled(other, 4 * MIB, 8));
	EXPECT(files(), 0);
	EXPECT(cudaFree(segment), 0);
	EXPECT(cudaFree(other), 0);
}

/* A directory that cannot be used: nothing is lost, and the error names the setting that the directory came from, which
 * is tms_set_disk_backup_dir with "set". */
static void unwritable(void)
{
	char above[4096];
	if (set)
		tms_set_disk_backup_dir(directory);
	void *segment = on_disk(4 * MIB, "t", 7);
	EXPECT(tms_pause(NULL), 304);
	CHECK(strstr(tms_last_error(), directory));
	CHECK(strstr(tms_last_error(), words));
	CHECK(filled(segment, 4 * MIB, 7));
	snprintf(above, sizeof above, "%s", directory);
	*strrchr(above, '/') = 0; /* the directory of the file that was given as one */
	tms_set_disk_backup_dir(above);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(segment, 4 * MIB, 7));
	EXPECT(cudaFree(segment), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	directory = argv[2];
	words = argv[3];
	set = argc > 4;
	CHECK(RUN_PART(argv[1], {"contents", contents}, {"closed", closed}, {"alone", alone}, {"unkept", unkept},
		       {"unwritable", unwritable}));
	return 0;
}
