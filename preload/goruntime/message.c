/* message has the library's texts for the host: the calling thread's last failure, lines on stderr, and others. It
 * never writes into a file of the host's, which may close any descriptor and get its number for a file of its own. */
#define _GNU_SOURCE
#include "goruntime.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* As write, but a pipe without a reader gives an error, not a signal that ends the host. The sets are the kernel's, of
 * 8 bytes, because the thread's stack may be small. */
static ssize_t descriptor_write(int number, const char *text, size_t length)
{
	const uint64_t pipe = 1ull << (SIGPIPE - 1);
	uint64_t pending = 0, saved = 0;
	syscall(SYS_rt_sigpending, &pending, sizeof pending);
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &pipe, &saved, sizeof saved);
	ssize_t written = write(number, text, length);
	int error = errno;
	if (written < 0 && error == EPIPE && !(pending & pipe))
		syscall(SYS_rt_sigtimedwait, &pipe, NULL, &(struct timespec){0, 0}, sizeof pipe);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &saved, NULL, sizeof saved);
	errno = error;
	return written;
}

static struct stat stderr_then;
static bool had_stderr;

AT_LOAD HIDDEN void descriptor_load(void)
{
	had_stderr = fstat(STDERR_FILENO, &stderr_then) == 0;
}

/* Descriptor 2 may be redirected while the program runs, or closed and reused for anything. Only a terminal, a pipe, or
 * a file that is open for appending takes lines of a log. */
OUT_OF_LINE bool is_stderr(void)
{
	struct stat file;
	if (fstat(STDERR_FILENO, &file) != 0)
		return false;
	if (had_stderr && file.st_dev == stderr_then.st_dev && file.st_ino == stderr_then.st_ino)
		return true;
	return S_ISFIFO(file.st_mode) || (S_ISCHR(file.st_mode) && isatty(STDERR_FILENO)) ||
	       (S_ISREG(file.st_mode) && fcntl(STDERR_FILENO, F_GETFL) & O_APPEND);
}

HIDDEN bool error_on_terminal(void)
{
	return is_stderr() && isatty(STDERR_FILENO);
}

HIDDEN void error_set(const char *message)
{
	struct thread *mine = thread_mine();
	if (mine)
		snprintf(mine->text, THREAD_TEXT_SIZE, "%s", message);
}

HIDDEN int error_fail(int code, const char *format, ...)
{
	struct thread *mine = thread_mine();
	va_list arguments;
	va_start(arguments, format);
	if (mine)
		vsnprintf(mine->text, THREAD_TEXT_SIZE, format, arguments);
	va_end(arguments);
	return code;
}

HIDDEN void error_prefix(const char *words)
{
	struct thread *mine = thread_mine();
	size_t length = strlen(words);
	if (!mine)
		return;
	memmove(mine->text + length, mine->text, THREAD_TEXT_SIZE - length - 1);
	memcpy(mine->text, words, length);
	mine->text[THREAD_TEXT_SIZE - 1] = 0;
}

/* length: of the thread's line, as snprintf has it. */
static void write_line(struct thread *mine, int length)
{
	if (length >= (int)sizeof mine->line) {
		length = sizeof mine->line - 1;
		mine->line[length - 1] = '\n';
	}
	if (length > 0 && is_stderr())
		descriptor_write(STDERR_FILENO, mine->line, (size_t)length);
}

HIDDEN void error_log(const char *message)
{
	struct thread *mine = thread_mine();
	if (mine)
		write_line(mine, snprintf(mine->line, sizeof mine->line, "tms: %s\n", message));
}

HIDDEN void error_log_failure(const char *function, int code)
{
	struct thread *mine = code == SUCCESS ? NULL : thread_mine();
	if (mine)
		write_line(mine, snprintf(mine->line, sizeof mine->line, "tms: %s: %s (cudaError %d)\n", function,
					  tms_last_error(), code));
}

EXPORT const char *tms_last_error(void)
{
	return thread_known ? thread_known->text : "";
}
