/* error is the core of what a caller is told: the calling thread's last failure, in words. */
#define _GNU_SOURCE
#include "seam.h"
#include "tms.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A pointer, not a buffer: static TLS is scarce when the library is dlopen'ed. */
static __thread char *text __attribute__((tls_model("initial-exec")));
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
enum { TEXT_SIZE = 1024 };

static void make_key(void)
{
	if (pthread_key_create(&key, free) != 0)
		key = (pthread_key_t)-1; /* the text of ended threads then leaks, 1 KiB each */
}

HIDDEN void error_set(const char *message)
{
	if (!text) {
		pthread_once(&once, make_key);
		text = malloc(TEXT_SIZE);
		if (!text)
			return;
		if (key != (pthread_key_t)-1)
			pthread_setspecific(key, text);
	}
	snprintf(text, TEXT_SIZE, "%s", message);
}

HIDDEN int error_fail(int code, const char *format, ...)
{
	char message[TEXT_SIZE];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(message, sizeof message, format, arguments);
	va_end(arguments);
	error_set(message);
	return code;
}

HIDDEN void error_log(const char *message)
{
	char line[TEXT_SIZE];
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
	return text ? text : "";
}
