/* error is the core of what a caller is told: the calling thread's last failure, in words. */
#define _GNU_SOURCE
#include "seam.h"
#include "tms.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

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
	if (length > 0 && descriptor_is_stderr())
		descriptor_write(STDERR_FILENO, line, (size_t)length);
}

EXPORT const char *tms_last_error(void)
{
	return thread_known ? thread_known->text : "";
}
