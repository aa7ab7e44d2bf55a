/* The host closes descriptors and opens files of its own, which get the numbers: the library may write nothing into
 * them. Called as: descriptors CASE FILE; for stderr-* with settings about which the library has two complaints, and
 * for trace-* with a trace to FILE. */
#include "host.h"

#include <sys/file.h>

static void use(void)
{
	void *block = NULL;
	tms_set_interesting_region(false); /* the first complaint */
	EXPECT(cudaMalloc(&block, 100), 0); /* the second */
	EXPECT(cudaFree(block), 0);
}

static int opened(const char *path, int flags)
{
	int file = open(path, O_RDWR | O_CREAT | flags, 0600);
	CHECK(file >= 0);
	return file;
}

static off_t size_of(int file)
{
	struct stat status;
	EXPECT(fstat(file, &status), 0);
	return status.st_size;
}

static void stderr_is_a_database(const char *path)
{
	int terminal = dup(STDERR_FILENO);
	close(STDERR_FILENO);
	EXPECT(opened(path, O_TRUNC), STDERR_FILENO);
	use();
	off_t size = size_of(STDERR_FILENO);
	dup2(terminal, STDERR_FILENO);
	EXPECT(size, 0);
}

static void stderr_is_a_log(const char *path)
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

/* Nobody reads the pipe: then the message is lost, not the host. */
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
static void trace_is_locked(const char *path)
{
	EXPECT(flock(opened(path, 0), LOCK_EX), 0);
	use();
	while (open("/dev/null", O_RDONLY | O_CLOEXEC) < HIGHEST)
		;
	child_closes_none();
}

static void trace_is_closed(const char *path)
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
static void trace_is_above(const char *path)
{
	char link[32], target[4096];
	for (int number = 0; number <= 1; number++)
		close(number);
	use();
	for (int number = 0; number <= 1; number++) {
		snprintf(link, sizeof link, "/proc/self/fd/%d", number);
		ssize_t length = readlink(link, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = 0;
		CHECK(strcmp(target, path) != 0);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
#define CASE(name, call)                                                                           \
	if (strcmp(argv[1], name) == 0)                                                            \
		call;
	CASE("stderr-database", stderr_is_a_database(argv[2]))
	CASE("stderr-log", stderr_is_a_log(argv[2]))
	CASE("stderr-pipe", stderr_is_a_pipe())
	CASE("stderr-broken", stderr_is_a_broken_pipe())
	CASE("stderr-start", use())
	CASE("trace-locked", trace_is_locked(argv[2]))
	CASE("trace-closed", trace_is_closed(argv[2]))
	CASE("trace-above", trace_is_above(argv[2]))
	return 0;
}
