/* Two processes that use the driver API alone, without a libcudart, share memory: by a handle of cuIpcGetMemHandle, and
 * by a descriptor. */
#include "host.h"

#include <sys/prctl.h>
#include <sys/socket.h>

struct handle {
	char bytes[64];
};
struct prop {
	int type, handle_types, location_type, location;
	char rest[16];
};
struct access {
	int location_type, location, flags;
};
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uintptr_t *, size_t);
int cuMemsetD8_v2(uintptr_t, unsigned char, size_t);
int cuMemcpyDtoH_v2(void *, uintptr_t, size_t);
int cuIpcGetMemHandle(struct handle *, uintptr_t);
int cuIpcOpenMemHandle_v2(uintptr_t *, struct handle, unsigned);
int cuIpcCloseMemHandle(uintptr_t);
int cuMemCreate(uint64_t *, size_t, const struct prop *, unsigned long long);
int cuMemExportToShareableHandle(void *, uint64_t, int, unsigned long long);
int cuMemImportFromShareableHandle(uint64_t *, void *, int);
int cuMemRelease(uint64_t);

enum { SIZE = 4 << 20, LAZY = 1, POSIX_FD = 1, PINNED = 1, DEVICE = 1 };

static int channel;

static void meet(void)
{
	char here = 1;
	CHECK(send(channel, &here, 1, MSG_NOSIGNAL) == 1 && recv(channel, &here, 1, 0) == 1);
}

static void exporter(void)
{
	const struct prop prop = {PINNED, POSIX_FD, DEVICE, 0, {0}};
	struct handle handle;
	uintptr_t memory = 0;
	uint64_t made = 0;
	int fd = -1;
	tms_set_interesting_region(true);
	EXPECT(cuMemAlloc_v2(&memory, SIZE), 0);
	EXPECT(cuMemCreate(&made, SIZE, &prop, 0), 0);
	tms_set_interesting_region(false);
	EXPECT(cuMemsetD8_v2(memory, 7, SIZE), 0);
	EXPECT(cuIpcGetMemHandle(&handle, memory), 0);
	EXPECT(cuMemExportToShareableHandle(&fd, made, POSIX_FD, 0), 0);
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec data = {&handle, sizeof handle};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	rights->cmsg_len = CMSG_LEN(sizeof fd);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(rights), &fd, sizeof fd);
	CHECK(sendmsg(channel, &message, MSG_NOSIGNAL) == sizeof handle);
	meet();
}

static void importer(void)
{
	struct handle handle;
	char control[CMSG_SPACE(sizeof(int))], byte = 0;
	struct iovec data = {&handle, sizeof handle};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	uintptr_t memory = 0;
	uint64_t imported = 0;
	int fd;
	CHECK(recvmsg(channel, &message, MSG_WAITALL) == sizeof handle && CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	EXPECT(cuIpcOpenMemHandle_v2(&memory, handle, LAZY), 0);
	EXPECT(cuMemcpyDtoH_v2(&byte, memory + SIZE - 1, 1), 0);
	EXPECT(byte, 7);
	EXPECT(cuIpcCloseMemHandle(memory), 0);
	EXPECT(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, POSIX_FD), 0);
	EXPECT(cuMemRelease(imported), 0);
	meet();
}

int main(void)
{
	int ends[2], status;
	void *context = NULL;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t other = fork();
	CHECK(other >= 0);
	channel = ends[other == 0];
	close(ends[other != 0]);
	EXPECT(cuInit(0), 0);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), 0);
	EXPECT(cuCtxSetCurrent(context), 0);
	if (other == 0) {
		exporter();
		return 0;
	}
	importer();
	EXPECT(waitpid(other, &status, 0), other);
	return WEXITSTATUS(status);
}
