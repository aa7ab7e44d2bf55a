/* A process asks for another process's memory through the exporter's control socket, whose thread a tracer holds at a
 * chosen call. While it is held, the thread that requested the memory gives up, or the process that asked dies. */
#include "pair.h"

#include <sys/ptrace.h>

enum { SIZE = 2 << 20, KEPT = 0, LENT = 1, NOT_READY = 600 };

static pid_t exporter, thread;	   /* of its control socket */
static int exporters_end; /* of the socket between the exporter and the tracer */

/* Starts a process that does this, and dies with the caller; *to is a socket to it, and *from the other end there. */
static pid_t beside(void (*does)(int), int *to, int *from)
{
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		does(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	*to = ends[0];
	*from = ends[1];
	return child;
}

/* The exporter pauses alone on request, and sends the code. */
static void export(int tracer)
{
	struct handle handles[2];
	char *memory[2], tag;
	for (int i = 0; i < 2; i++) {
		memory[i] = pausable(SIZE, i == KEPT ? "kept" : "lent", true);
		fill(memory[i], SIZE, (unsigned)i);
		EXPECT(cudaIpcGetMemHandle(&handles[i], memory[i]), 0);
	}
	tell(tracer, handles, sizeof handles);
	while (recv(tracer, &tag, 1, 0) == 1) {
		int code = tms_pause_within(tag == KEPT ? "kept" : "lent", 0.1);
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(memory[(int)tag], SIZE, (unsigned)tag));
		tell(tracer, &code, sizeof code);
	}
}

static int pauses_alone(char tag)
{
	int code;
	tell(channel, &tag, 1);
	hear(channel, &code, sizeof code);
	return code;
}

/* Opens the memory that is asked for, until the socket is closed. */
static struct handle handles[2];
static void ask(int tracer)
{
	char tag;
	while (recv(tracer, &tag, 1, 0) == 1) {
		void *memory = NULL;
		EXPECT(cudaIpcOpenMemHandle(&memory, handles[(int)tag], 1), 0);
		CHECK(filled(memory, SIZE, (unsigned)tag));
		tell(tracer, &tag, 1);
	}
}

/* Finds the file of a thread's descriptor, and reports whether there is one. */
static bool file_of(pid_t of, const char *descriptor, char file[100])
{
	char path[100];
	snprintf(path, sizeof path, "/proc/%d/task/%d/fd/%s", (int)exporter, (int)of, descriptor);
	ssize_t length = readlink(path, file, 99);
	file[length > 0 ? length : 0] = 0;
	return length > 0;
}

/* How many descriptors a thread has. */
static int has(pid_t of)
{
	char path[100];
	int count = 0;
	snprintf(path, sizeof path, "/proc/%d/task/%d/fd", (int)exporter, (int)of);
	DIR *all = opendir(path);
	CHECK(all);
	for (struct dirent *entry; (entry = readdir(all));)
		count += entry->d_name[0] != '.';
	closedir(all);
	return count;
}

/* The socket's thread has descriptors of its own, so its descriptor 2 is not the process's. */
static pid_t socket_thread(void)
{
	char path[100], file[2][100];
	pid_t found = 0;
	snprintf(path, sizeof path, "/proc/%d/task", (int)exporter);
	while (!found) {
		DIR *all = opendir(path);
		CHECK(all);
		for (struct dirent *entry; (entry = readdir(all));) {
			pid_t one = atoi(entry->d_name);
			if (one > 0 && file_of(exporter, "2", file[0]) && (!file_of(one, "2", file[1]) || strcmp(file[0], file[1])))
				found = one;
		}
		closedir(all);
	}
	return found;
}

/* Runs the traced thread until it begins or ends such a call. */
static struct __ptrace_syscall_info runs_until(bool (*there)(const struct __ptrace_syscall_info *))
{
	struct __ptrace_syscall_info info;
	int status, signal = 0;
	do {
		EXPECT(ptrace(PTRACE_SYSCALL, thread, NULL, signal), 0);
		EXPECT(waitpid(thread, &status, __WALL), thread);
		CHECK(WIFSTOPPED(status));
		bool delivers = status >> 16 == 0 && WSTOPSIG(status) != (SIGTRAP | 0x80);
		signal = delivers ? WSTOPSIG(status) : 0;
		CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) > 0);
	} while (!there(&info));
	return info;
}

static uint64_t call; /* begun last */
static bool begins(const struct __ptrace_syscall_info *at, uint64_t number)
{
	if (at->op == PTRACE_SYSCALL_INFO_ENTRY)
		call = at->entry.nr;
	return at->op == PTRACE_SYSCALL_INFO_ENTRY && call == number;
}

/* The thread sends a message with a descriptor: the answer. */
static bool answers(const struct __ptrace_syscall_info *at)
{
	return begins(at, SYS_sendmsg) &&
	       ptrace(PTRACE_PEEKDATA, thread, at->entry.args[1] + offsetof(struct msghdr, msg_controllen), NULL) > 0;
}

/* The thread has read another process's request. */
static bool has_read(const struct __ptrace_syscall_info *at)
{
	(void)begins(at, 0);
	return at->op == PTRACE_SYSCALL_INFO_EXIT && call == SYS_read && at->exit.rval > 0;
}

static bool waits(const struct __ptrace_syscall_info *at)
{
	return begins(at, SYS_ppoll);
}

static void trace(void)
{
	int status;
	EXPECT(ptrace(PTRACE_SEIZE, thread, NULL, PTRACE_O_TRACESYSGOOD), 0);
	EXPECT(ptrace(PTRACE_INTERRUPT, thread, NULL, NULL), 0);
	EXPECT(waitpid(thread, &status, __WALL), thread);
}

/* Ends the connection over which the exporter's other thread waits for its own socket's thread. */
static void end_wait(int others)
{
	int pidfd = (int)syscall(SYS_pidfd_open, exporter, 0);
	CHECK(pidfd >= 0);
	char file[100], name[12];
	for (int fd = 3; has(exporter) > others && fd < 1024; fd++) {
		snprintf(name, sizeof name, "%d", fd);
		if (fd == exporters_end || !file_of(exporter, name, file) || strncmp(file, "socket:", 7))
			continue;
		int same = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
		CHECK(same >= 0 && shutdown(same, SHUT_RD) == 0);
		close(same);
	}
	close(pidfd);
	AWAIT(has(exporter) <= others);
}

int main(void)
{
	int first, second, unused;
	char tag = LENT;
	exporter = beside(export, &channel, &exporters_end);
	hear(channel, handles, sizeof handles);
	thread = socket_thread();
	int own = has(thread), others = has(exporter);

	/* The thread that requested the memory gives up when the socket's thread is about to answer: the answer counts,
	 * and no other comes, neither for this request nor for the next. */
	pid_t one = beside(ask, &first, &unused);
	trace();
	tell(first, &tag, 1);
	(void)runs_until(answers);
	end_wait(others);
	EXPECT(ptrace(PTRACE_DETACH, thread, NULL, NULL), 0);
	hear(first, &tag, 1);
	EXPECT(pauses_alone(LENT), NOT_READY); /* it is known to be held */
	tell(first, &(char){KEPT}, 1);
	hear(first, &tag, 1);
	EXPECT(pauses_alone(KEPT), NOT_READY);

	/* The process that asked dies first: then no process has the memory, and nothing of the answer is left. */
	close(first);
	EXPECT(waitpid(one, NULL, 0), one);
	EXPECT(pauses_alone(LENT), 0);
	AWAIT(has(thread) <= own);
	pid_t other = beside(ask, &second, &unused);
	trace();
	tell(second, &tag, 1);
	(void)runs_until(has_read);
	(void)runs_until(waits);
	EXPECT(kill(other, SIGKILL), 0);
	EXPECT(waitpid(other, NULL, 0), other);
	EXPECT(ptrace(PTRACE_DETACH, thread, NULL, NULL), 0);
	beside(ask, &first, &unused);
	tell(first, &(char){LENT}, 1);
	hear(first, &tag, 1);
	EXPECT(pauses_alone(LENT), NOT_READY);
	EXPECT(pauses_alone(KEPT), 0);
	AWAIT(has(thread) <= own);
	return 0;
}
