/* pair is what programs of two processes share, which talk over a socket. */
#ifndef PAIR_H
#define PAIR_H

#include "host.h"

#include <sys/socket.h>

static int rank, channel; /* 0 and 1; a socket to the other */
static pid_t other_process;

static inline void tell(int to, const void *data, size_t size)
{
	CHECK(send(to, data, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static inline void hear(int from, void *data, size_t size)
{
	CHECK(recv(from, data, size, MSG_WAITALL) == (ssize_t)size);
}

static inline void meet(void)
{
	char here = 1;
	tell(channel, &here, 1);
	hear(channel, &here, 1);
}

static inline void other_ends(void)
{
	char byte;
	CHECK(recv(channel, &byte, 1, 0) <= 0);
}

/* As PyTorch's IpcChannel does, with room for a descriptor. */
#define DESCRIPTOR_MESSAGE(name)                                                                   \
	char control_[CMSG_SPACE(sizeof(int))] = {0}, text_[] = "fd";                              \
	struct iovec data_ = {text_, 2};                                                           \
	struct msghdr name = {.msg_iov = &data_, .msg_iovlen = 1, .msg_control = control_,         \
			      .msg_controllen = sizeof control_};                                  \
	struct cmsghdr *rights = CMSG_FIRSTHDR(&name)

static inline void send_fd(int fd)
{
	DESCRIPTOR_MESSAGE(message);
	rights->cmsg_len = CMSG_LEN(sizeof fd);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	CHECK(sendmsg(channel, &message, MSG_NOSIGNAL) == 2);
}

static inline int receive_fd(void)
{
	int fd;
	DESCRIPTOR_MESSAGE(message);
	CHECK(recvmsg(channel, &message, 0) == 2 && rights->cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(rights), sizeof fd);
	return fd;
}

/* Makes a graph that copies memory of the other process. */
static inline void *captured_copy(void *stream, char *to, const char *from, size_t size)
{
	void *graph = NULL, *exec = NULL;
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	EXPECT(cudaMemcpyAsync(to, from, size, 3, stream), 0);
	EXPECT(cudaStreamEndCapture(stream, &graph), 0);
	EXPECT(cudaGraphInstantiate(&exec, graph, 0), 0);
	return exec;
}

/* Waits until descriptors that were lent are closed. */
static inline void no_more_descriptors_than(int count)
{
	for (int i = 0; i < 60000 && descriptors() > count; i++)
		usleep(1000);
	CHECK(descriptors() <= count);
}

/* Forks the two processes, before CUDA and before the library is needed. Both end well, except the process that is
 * killed; killed is -1 if neither is. */
static inline void in_two(void (*as_rank)(void), int killed)
{
	int ends[2];
	pid_t ranks[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	for (rank = 0; rank < 2; rank++) {
		ranks[rank] = fork();
		CHECK(ranks[rank] >= 0);
		if (ranks[rank])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		channel = ends[rank];
		close(ends[!rank]);
		pid_t own = getpid();
		tell(channel, &own, sizeof own);
		hear(channel, &other_process, sizeof other_process);
		as_rank();
		exit(0);
	}
	close(ends[0]);
	close(ends[1]);
	for (rank = 0; rank < 2; rank++)
		EXPECT(code_of(ranks[rank]), rank == killed ? -SIGKILL : 0);
}

#endif
