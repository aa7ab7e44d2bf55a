/* everything has what tms_pause_everything needs besides a pause. It runs cmd/tms (helper.c), which makes the driver's
 * checkpoint of this process over the control socket, because no process can make its own. */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <unistd.h>

static int checkpointed(char *arguments[], uint64_t *bytes)
{
	char then[64];
	snprintf(then, sizeof then, "tms resume %d goes on from there", (int)getpid());
	int code = helper_run(arguments, bytes, "no process can make the driver's checkpoint of itself", then);
	return code == HELPER_ENDED ? ERROR_OPERATING_SYSTEM : code;
}

/* For the command, which reads a decimal point, whatever the program's locale has in its place. */
enum { SECONDS_SIZE = 32 };
static void write_seconds(char text[SECONDS_SIZE], double seconds)
{
	const double most = 1e9, nanosecond = 1e-9;
	snprintf(text, SECONDS_SIZE, "%.0fe-9", (seconds < most ? seconds : most) / nanosecond);
}

HIDDEN int everything_pause(double timeout, uint64_t *bytes)
{
	if (!(timeout >= 0))
		return error_fail(ERROR_INVALID_VALUE, "%g is no number of seconds to wait", timeout);
	int code = operation_serve();
	if (code != SUCCESS)
		return code;
	uid_t user;
	if (!control_found(&user))
		return error_fail(ERROR_NOT_SUPPORTED,
				  "the process listens as user %u and has become user %u, whose commands do not find it; "
				  "nothing has changed. Have root run tms pause %d --everything, or change the user "
				  "before the first pausable allocation",
				  user, geteuid(), (int)getpid());
	char process[16], seconds[SECONDS_SIZE];
	snprintf(process, sizeof process, "%d", (int)getpid());
	write_seconds(seconds, timeout);
	char *arguments[] = {NULL, "pause", process, "--everything", "--force", "--timeout", seconds, "--report", NULL};
	return checkpointed(arguments, bytes);
}

HIDDEN int everything_restore(double wait)
{
	if (!checkpoint_asked() || go_now() != GO_AWAKE) /* a child lacks the parent's CUDA, and other functions say so */
		return SUCCESS;
	char process[16], seconds[SECONDS_SIZE];
	snprintf(process, sizeof process, "%d", (int)getpid());
	write_seconds(seconds, wait);
	char *arguments[] = {NULL, "resume", process, "--driver", "--wait", seconds, "--report", NULL};
	int code = checkpointed(arguments, NULL);
	if (code != SUCCESS)
		return code;
	if (checkpoint_pending())
		return error_fail(ERROR_ILLEGAL_STATE, "a command is pausing everything of this process at this moment; "
						       "resume it again when that has ended");
	checkpoint_set(false);
	return SUCCESS;
}
