/* The host closes descriptors and opens files of its own, which get the numbers: the library may write nothing into
 * them. Called as: descriptors CASE FILE; for stderr-* with settings about which the library has two complaints, and
 * for trace-* with a trace to FILE. */
#include "host.h"

#include <sys/file.h>

static const char *path; /* FILE */

static void use(void)
{
	void *block = NULL;
	tms_set_interesting_region(false); /* the first complaint */
	EXPECT(cudaMalloc(&block, 100), 0); /* the second */
	EXPECT(cudaFree(block), 0);
}

static int opened(const char *name, int flags)
{
	int file = open(name, O_RDWR | O_CREAT | flags, 0600);
	CHECK(file >= 0);
	return file;
}

static off_t size_of(int file)
{
	struct stat status;
	EXPECT(fstat(file, &status), 0);
	return status.st_size;
}

static void stderr_is_a_database(void)
{
	int terminal = dup(STDERR_FILENO);
	close(STDERR_FILENO);
	EXPECT(opened(path, O_TRUNC), STDERR_FILENO);
	use();
	off_t size = size_of(STDERR_FILENO);
	dup2(terminal, STDERR_FILENO);
	EXPECT(size, 0);
}

static void stderr_is_a_log(void)
{
	EXPECT(dup2(opened(path, O_APPEND), STDERR_FILENO), STDERR_FILENO);
	use();
}

static void stderr_is_a_pipe(void)
{
	int ends[2];
	char text[4096] = "";
	EXPECT(pipe(ends), 0);
	EXPECT(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	use();
	CHECK(read(ends[0], text, sizeof text - 1) > 0);
	printf("%s", text);
}

/* The pipe has no reader. The message is lost, but the host lives on. */
static void stderr_is_a_broken_pipe(void)
{
	int ends[2];
	sigset_t pending;
	EXPECT(pipe(ends), 0);
	EXPECT(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	close(ends[0]);
	use();
	EXPECT(sigpending(&pending), 0);
	CHECK(!sigismember(&pending, SIGPIPE));
}

enum { HIGHEST = 40 };

static void all_are_open(void)
{
	for (int number = 3; number < HIGHEST; number++)
		CHECK(fcntl(number, F_GETFD) >= 0);
}

static void child_closes_none(void)
{
	pid_t child = fork();
	if (child == 0) {
		all_are_open();
		_exit(0);
	}
	EXPECT(code_of(child), 0);
}

/* Another process records to the file: then the library has no descriptor. */
static void trace_is_locked(void)
{
	int file = opened(path, 0);
	EXPECT(flock(file, LOCK_EX), 0);
	EXPECT(write(file, "theirs\n", 7), 7);
	use();
	while (open("/dev/null", O_RDONLY | O_CLOEXEC) < HIGHEST)
		;
	child_closes_none();
}

static void trace_is_closed(void)
{
	char database[4096];
	use();
	for (int number = 3; number < HIGHEST; number++)
		close(number);
	snprintf(database, sizeof database, "%s.database", path);
	int file = opened(database, 0);
	while (dup(file) < HIGHEST)
		;
	use();
	sleep(1);
	use(); /* writes the records of the second before */
	use();
	child_closes_none();
	EXPECT(size_of(file), 0);
}

/* A host that has closed its first descriptors may still write to them. */
static void trace_is_above(void)
{
	for (int number = 0; number <= 1; number++)
		close(number);
	use();
	for (int number = 0; number <= 1; number++)
		CHECK(strcmp(target_of(number), path) != 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	path = argv[2];
	CHECK(RUN_PART(argv[1], {"stderr-database", stderr_is_a_database}, {"stderr-log", stderr_is_a_log},
		       {"stderr-pipe", stderr_is_a_pipe}, {"stderr-broken", stderr_is_a_broken_pipe}, {"stderr-start", use},
		       {"trace-locked", trace_is_locked}, {"trace-closed", trace_is_closed}, {"trace-above", trace_is_above}));
	return 0;
}
