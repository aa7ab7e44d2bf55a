/* helper runs cmd/tms for what this process cannot do to itself, or to others, and waits for what it says. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Found before anything can be paused: a thread that waits for a resume may have the loader's lock. */
static const char *self;
static int (*close_from)(posix_spawn_file_actions_t *, int);

HIDDEN void helper_prepare(void)
{
	static atomic_bool done;
	Dl_info info;
	if (atomic_load(&done))
		return;
	if (dladdr((void *)helper_prepare, &info))
		self = info.dli_fname;
	close_from = (int (*)(posix_spawn_file_actions_t *, int))dlsym(RTLD_DEFAULT,
									"posix_spawn_file_actions_addclosefrom_np");
	atomic_store(&done, true);
}

/* Returns the path of the command: TMS_COMMAND, else the place where the wheel or scripts/build.sh puts it, else a name
 * to look for on the path. */
static const char *command(char path[4096])
{
	const char *named = getenv("TMS_COMMAND");
	if (named && *named)
		return named;
	if (self) {
		const char *slash = strrchr(self, '/');
		int length = slash ? (int)(slash - self) : 0;
		/* of scripts/build.sh; beside it; of pip install --target; of an environment, from its site-packages */
		static const char *const beside[] = {"../bin/tms", "tms", "../../bin/tms", "../../../../../bin/tms"};
		for (size_t i = 0; slash && i < sizeof beside / sizeof *beside; i++) {
			int written = snprintf(path, 4096, "%.*s/%s", length, self, beside[i]);
			if (written < 4096 && access(path, X_OK) == 0)
				return path;
		}
	}
	return "tms";
}

extern char **environ;

static bool is(const char *entry, const char *name)
{
	size_t length = strlen(name);
	return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

/* Returns this process's environment, without the variables that would load its libraries there, and with the
 * directories of its socket, for which text has room, or NULL if memory is short. */
static char **helper_environment(char text[2][4096])
{
	size_t count = 0, kept = 0;
	while (environ && environ[count])
		count++;
	char **result = malloc((count + 3) * sizeof *result);
	for (size_t i = 0; result && i < count; i++)
		if (!is(environ[i], "LD_PRELOAD") && !is(environ[i], "LD_AUDIT") && !is(environ[i], "XDG_RUNTIME_DIR") &&
		    !is(environ[i], "TMPDIR"))
			result[kept++] = environ[i];
	if (!result)
		return NULL;
	const char *const directories[] = {control_environment.runtime_dir, control_environment.temporary};
	static const char *const names[] = {"XDG_RUNTIME_DIR", "TMPDIR"};
	for (int i = 0; i < 2; i++)
		if (directories[i] && snprintf(text[i], 4096, "%s=%s", names[i], directories[i]) < 4096)
			result[kept++] = text[i];
	result[kept] = NULL;
	return result;
}

/* The helper has the signals of a new program, and none of our descriptors but the pipe, where glibc (2.34) can close
 * them. The child runs no atfork handlers, and shares our memory until it is another program. */
static int start_helper(pid_t *helper, char *const arguments[], char *const environment[], int out)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t signals; /* one: the stack may be small */
	sigfillset(&signals);
	posix_spawn_file_actions_init(&actions); /* neither fails, in glibc or musl */
	posix_spawnattr_init(&attributes);
	int error = posix_spawn_file_actions_adddup2(&actions, out, 1);
	if (!error)
		error = posix_spawn_file_actions_adddup2(&actions, out, 2);
	if (!error)
		error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!error && close_from)
		error = close_from(&actions, 3);
	posix_spawnattr_setsigdefault(&attributes, &signals);
	sigemptyset(&signals);
	posix_spawnattr_setsigmask(&attributes, &signals);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	if (!error)
		error = posix_spawnp(helper, arguments[0], &actions, &attributes, arguments, environment);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return error;
}

/* Reads all that the helper writes, until it ends; another thread of the host may reap the process itself. */
static void listen_to(pid_t helper, int in, char *words, size_t capacity)
{
	size_t length = 0;
	for (;;) {
		char rest[256];
		bool room = length < capacity - 1;
		ssize_t got = read(in, room ? words + length : rest, room ? capacity - 1 - length : sizeof rest);
		if (got > 0)
			length += room ? (size_t)got : 0;
		else if (got == 0 || errno != EINTR)
			break;
	}
	while (length > 0 && words[length - 1] == '\n')
		length--;
	words[length] = 0;
	while (waitpid(helper, NULL, 0) < 0 && errno == EINTR)
		;
}

struct exchange { /* too large for the stack of a host thread */
	char path[4096], text[2][4096], words[THREAD_TEXT_SIZE];
};

static int exchange(struct exchange *with, char *arguments[], uint64_t *bytes, const char *without, const char *then)
{
	int pipes[2];
	pid_t helper;
	arguments[0] = (char *)command(with->path);
	char **environment = helper_environment(with->text);
	if (!environment)
		return error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to start %s; nothing has changed", arguments[0]);
	if (pipe2(pipes, O_CLOEXEC) != 0) {
		free(environment);
		return error_fail(ERROR_OPERATING_SYSTEM, "no pipe to %s: %s; nothing has changed", arguments[0],
				  strerror(errno));
	}
	int error = start_helper(&helper, arguments, environment, pipes[1]);
	close(pipes[1]);
	free(environment);
	if (!error)
		listen_to(helper, pipes[0], with->words, sizeof with->words);
	close(pipes[0]);
	if (error)
		return error_fail(ERROR_OPERATING_SYSTEM,
				  "%s cannot be started (%s), and %s; name the command in TMS_COMMAND", arguments[0],
				  strerror(error), without);
	int code, read = 0;
	unsigned long long count;
	if (sscanf(with->words, "%d %llu%n", &code, &count, &read) != 2 || !strchr("\n", with->words[read])) {
		error_fail(ERROR_OPERATING_SYSTEM, "%s ended before it was done, %s%s%s", arguments[0], then,
			   *with->words ? ": " : "", with->words);
		return HELPER_ENDED;
	}
	if (bytes)
		*bytes = count;
	if (code != SUCCESS)
		error_set(with->words[read] ? with->words + read + 1 : "");
	return code;
}

HIDDEN int helper_run(char *arguments[], uint64_t *bytes, const char *without, const char *then)
{
	struct exchange *with = malloc(sizeof *with);
	if (!with)
		return error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to start a process; nothing has changed");
	int cancellation;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	int code = exchange(with, arguments, bytes, without, then);
	free(with);
	pthread_setcancelstate(cancellation, NULL);
	return code;
}
