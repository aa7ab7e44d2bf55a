/* message has the words that the library tells the host: the calling thread's last failure, lines on stderr, and
 * texts. It never writes into a file of the host's, which may close any descriptor, and open something of its own
 * that gets the number. */
#define _GNU_SOURCE
#include "shim.h"
#include "region.h"
#include "tms.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

AT_LOAD HIDDEN struct descriptor descriptor_of(int number)
{
	struct stat file;
	if (number < 0 || fstat(number, &file) != 0)
		return (struct descriptor){-1, 0, 0};
	return (struct descriptor){number, file.st_dev, file.st_ino};
}

HIDDEN bool descriptor_is_still(struct descriptor then)
{
	struct descriptor now = descriptor_of(then.number);
	return now.number >= 0 && now.device == then.device && now.inode == then.inode;
}

/* As write, but a pipe that nobody reads is an error, not a signal that ends the host. */
HIDDEN ssize_t descriptor_write(int number, const char *text, size_t length)
{
	sigset_t pipe, pending, saved;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigemptyset(&pending);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe, &saved);
	ssize_t written = write(number, text, length);
	int error = errno;
	if (written < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe, NULL, &(struct timespec){0, 0});
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	errno = error;
	return written;
}

static struct descriptor stderr_then = {-1, 0, 0};

AT_LOAD HIDDEN void descriptor_load(void)
{
	stderr_then = descriptor_of(STDERR_FILENO);
}

/* Descriptor 2 may be redirected while the program runs, or closed and come to be anything. What takes
 * lines of a log is a terminal, a pipe, or a file that is open for appending. */
static bool is_stderr(void)
{
	struct stat file;
	if (stderr_then.number >= 0 && descriptor_is_still(stderr_then))
		return true;
	if (fstat(STDERR_FILENO, &file) != 0)
		return false;
	return S_ISFIFO(file.st_mode) || (S_ISCHR(file.st_mode) && isatty(STDERR_FILENO)) ||
	       (S_ISREG(file.st_mode) && fcntl(STDERR_FILENO, F_GETFL) & O_APPEND);
}

HIDDEN void error_set(const char *message)
{
	struct thread *mine = thread_mine();
	if (mine)
		snprintf(mine->text, THREAD_TEXT_SIZE, "%s", message);
}

HIDDEN int error_fail(int code, const char *format, ...)
{
	char message[THREAD_TEXT_SIZE];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(message, sizeof message, format, arguments);
	va_end(arguments);
	error_set(message);
	return code;
}

HIDDEN void error_log(const char *message)
{
	char line[THREAD_TEXT_SIZE];
	int length = snprintf(line, sizeof line, "tms: %s\n", message);
	if (length >= (int)sizeof line) {
		length = sizeof line - 1;
		line[length - 1] = '\n';
	}
	if (length > 0 && is_stderr())
		descriptor_write(STDERR_FILENO, line, (size_t)length);
}

EXPORT const char *tms_last_error(void)
{
	return thread_known ? thread_known->text : "";
}

HIDDEN char *text_copy(const char *text, size_t length)
{
	char *copy = malloc(length + 1);
	if (!copy)
		return NULL;
	memcpy(copy, text, length);
	copy[length] = 0;
	return copy;
}
