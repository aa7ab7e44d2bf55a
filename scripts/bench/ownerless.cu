// What becomes of device memory whose maker is gone: a holder, a process without CUDA, has nothing but its exported
// descriptors. Prints who can use the memory how, what each step takes, and what the driver's checkpoint says to
// processes that have such memory. Other processes on the device spoil its figures.
//   nvcc -O2 -arch=native -o ownerless ownerless.cu -lcuda && ./ownerless [GIB]
#include <cuda.h>
#include <cuda_runtime.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };
static const size_t SIZE = 1ul << 30;
static int count = 16;
static CUmemGenericAllocationHandle handles[MOST];

static double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	fflush(stdout);
}

static int told(int code, const char *call)
{
	const char *name = "?";
	if (code) {
		cuGetErrorName((CUresult)code, &name);
		say("  %s: %d %s\n", call, code, name);
	}
	return code;
}
#define TELL(call) told(call, #call)

// A step that the rest needs: a failure ends this process.
#define NEED(call)                  \
	do {                        \
		if (told(call, #call)) \
			_exit(1);   \
	} while (0)

static void device_says(const char *when)
{
	say("%s: ", when);
	if (system("nvidia-smi --query-gpu=memory.used --format=csv,noheader -i 0 | tr '\\n' ' '; echo -n 'of it by process: ';"
		   "nvidia-smi --query-compute-apps=used_memory --format=csv,noheader -i 0 | tr '\\n' ' '; echo"))
		say("no nvidia-smi\n");
}

static void start_cuda()
{
	CUdevice device;
	CUcontext context;
	NEED(cuInit(0));
	NEED(cuDeviceGet(&device, 0));
	NEED(cuDevicePrimaryCtxRetain(&context, device));
	NEED(cuCtxSetCurrent(context));
}

static CUresult give_access(CUdeviceptr at, size_t size, CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {};
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.flags = flags;
	return cuMemSetAccess(at, size, &access, 1);
}

static CUdeviceptr map_all(CUmemAccess_flags flags)
{
	CUdeviceptr at;
	NEED(cuMemAddressReserve(&at, count * SIZE, 0, 0, 0));
	for (int i = 0; i < count; i++)
		NEED(cuMemMap(at + i * SIZE, SIZE, 0, handles[i], 0));
	NEED(give_access(at, count * SIZE, flags));
	return at;
}

/* The holder's socket. 'P' and descriptors: keep them. 'G': give them. 'D': close them. */
static int first; // this program's number, outside any namespace

static sockaddr_un address()
{
	sockaddr_un a = {};
	a.sun_family = AF_UNIX;
	snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "ownerless-%d", first); // abstract
	return a;
}

static ssize_t send_all(int to, char word, const int *descriptors)
{
	union {
		cmsghdr header;
		char space[CMSG_SPACE(MOST * sizeof(int))];
	} control = {};
	iovec bytes = {&word, 1};
	msghdr message = {};
	message.msg_iov = &bytes;
	message.msg_iovlen = 1;
	if (descriptors) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
	}
	return sendmsg(to, &message, MSG_NOSIGNAL);
}

static char receive(int from, int *descriptors)
{
	union {
		cmsghdr header;
		char space[CMSG_SPACE(MOST * sizeof(int))];
	} control = {};
	char word = 0;
	iovec bytes = {&word, 1};
	msghdr message = {};
	message.msg_iov = &bytes;
	message.msg_iovlen = 1;
	message.msg_control = &control;
	message.msg_controllen = sizeof control;
	if (recvmsg(from, &message, 0) == 1 && message.msg_controllen)
		memcpy(descriptors, CMSG_DATA(&control.header), count * sizeof(int));
	return word;
}

static void close_all(const int *descriptors)
{
	for (int i = 0; i < count; i++)
		close(descriptors[i]);
}

static void hold(int listener)
{
	int kept[MOST], got[MOST];
	bool some = false;
	for (;;) {
		int client = accept(listener, NULL, NULL);
		char word = receive(client, got);
		if (word == 'G') {
			send_all(client, 'k', some ? kept : NULL);
		} else {
			if (some)
				close_all(kept);
			some = word == 'P';
			memcpy(kept, got, sizeof kept);
			send_all(client, 'k', NULL);
		}
		close(client);
	}
}

static void ask(char word, const int *given, int *got)
{
	sockaddr_un a = address();
	int holder = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(holder, (sockaddr *)&a, sizeof a) || send_all(holder, word, given) != 1 || receive(holder, got) != 'k') {
		perror("the holder");
		_exit(1);
	}
	close(holder);
}

static unsigned pattern(int i) { return 0x1000 + i; }

/* Makes the memory, fills it, and gives its descriptors to the holder. */
static void make()
{
	CUmemAllocationProp wanted = {};
	wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	int descriptors[MOST];
	start_cuda();
	double begin = now();
	for (int i = 0; i < count; i++)
		NEED(cuMemCreate(&handles[i], SIZE, &wanted, 0));
	CUdeviceptr at = map_all(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	double mapped = now();
	for (int i = 0; i < count; i++)
		NEED(cuMemsetD32(at + i * SIZE, pattern(i), SIZE / 4));
	NEED(cuCtxSynchronize());
	double filled = now();
	for (int i = 0; i < count; i++)
		NEED(cuMemExportToShareableHandle(&descriptors[i], handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	double exported = now();
	ask('P', descriptors, NULL);
	say("maker: create and map %.1f ms, export %.1f, hand over %.2f\n", mapped - begin, exported - filled, now() - exported);
	close_all(descriptors);
	device_says("the maker lives");
}

static __global__ void count_others(const unsigned *words, size_t length, unsigned wanted, unsigned long long *others)
{
	unsigned long long found = 0;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < length; i += (size_t)gridDim.x * blockDim.x)
		found += words[i] != wanted;
	if (found)
		atomicAdd(others, found);
}

static __global__ void write_word(unsigned *words) { words[threadIdx.x] = 0xdead; }

static void compare(CUdeviceptr at, const char *who)
{
	unsigned long long *others, found = 0;
	NEED(cudaMalloc(&others, sizeof *others));
	NEED(cudaMemset(others, 0, sizeof *others));
	for (int i = 0; i < count; i++)
		count_others<<<1024, 256>>>((unsigned *)(at + i * SIZE), SIZE / 4, pattern(i), others);
	NEED(cudaMemcpy(&found, others, sizeof found, cudaMemcpyDeviceToHost));
	say("%s: %llu words differ\n", who, found);
}

static CUdeviceptr take(CUmemAccess_flags flags, const char *who)
{
	int descriptors[MOST];
	double start = now();
	start_cuda();
	double begin = now();
	ask('G', NULL, descriptors);
	double got = now();
	for (int i = 0; i < count; i++)
		NEED(cuMemImportFromShareableHandle(&handles[i], (void *)(uintptr_t)descriptors[i],
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	double imported = now();
	CUdeviceptr at = map_all(flags);
	say("%s: %d GiB in %.1f ms (descriptors %.2f, import %.1f, map %.1f), after %.0f for a context\n", who, count,
	    now() - begin, got - begin, imported - got, now() - imported, begin - start);
	close_all(descriptors);
	return at;
}

static void take_and_compare()
{
	compare(take(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "a taker"), "a taker");
	device_says("a taker has it");
}

static void take_twice()
{
	CUdeviceptr first = take(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "two mappings of one handle"), second;
	unsigned seen = 0;
	NEED(cuMemAddressReserve(&second, SIZE, 0, 0, 0));
	NEED(cuMemMap(second, SIZE, 0, handles[0], 0));
	NEED(give_access(second, SIZE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	NEED(cuMemsetD32(first + 64, 0x77, 1));
	NEED(cuCtxSynchronize());
	NEED(cuMemcpyDtoH(&seen, second + 64, sizeof seen));
	say("  the read-only one shows %#x, and 0x77 was written through the other\n", seen);
	NEED(cuMemsetD32(first + 64, pattern(0), 1));
	NEED(cuCtxSynchronize());
}

/* What a process needs that gives imported memory back to a holder that has lost it: a descriptor of an imported handle,
 * by which others import the memory, and which keeps it when this process is gone. */
static void export_again()
{
	int fresh[MOST];
	CUdeviceptr at = take(CU_MEM_ACCESS_FLAGS_PROT_READ, "an importer that exports");
	double begin = now();
	for (int i = 0; i < count; i++)
		if (TELL(cuMemExportToShareableHandle(&fresh[i], handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
			return;
	double exported = now();
	say("  exports what it has imported in %.1f ms\n", exported - begin);
	ask('D', NULL, NULL); /* the holder has nothing now, and this process keeps the memory */
	ask('P', fresh, NULL);
	close_all(fresh);
	compare(at, "an importer that exports");
}

static void make_read_only()
{
	unsigned word = 5;
	CUdeviceptr at = take(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "an importer that gives up writing");
	double begin = now();
	for (int i = 0; i < count; i++)
		NEED(give_access(at + i * SIZE, SIZE, CU_MEM_ACCESS_FLAGS_PROT_READ));
	say("  read-only in %.1f ms; then a write\n", now() - begin);
	TELL(cuMemcpyHtoD(at, &word, 4));
	compare(at, "an importer that gave up writing");
}

static void copy_into_read_only()
{
	unsigned word = 5;
	CUdeviceptr at = take(CU_MEM_ACCESS_FLAGS_PROT_READ, "read-only, driver's writes");
	compare(at, "read-only");
	TELL(cuMemsetD32(at, 1, 1));
	TELL(cuMemcpyDtoD(at, at + SIZE, 4));
	TELL(cuMemcpyHtoD(at, &word, 4));
	TELL(cuCtxSynchronize());
}

static void write_into_read_only()
{
	CUdeviceptr at = take(CU_MEM_ACCESS_FLAGS_PROT_READ, "read-only, a kernel's write");
	write_word<<<1, 32>>>((unsigned *)at);
	TELL(cuCtxSynchronize());
}

static int in_child(void (*work)())
{
	int status = 0;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		work();
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		say("  ended by signal %d\n", WTERMSIG(status));
	return status;
}

static void take_in_namespaces()
{
	if (unshare(CLONE_NEWPID | CLONE_NEWNS)) {
		perror("unshare");
		return;
	}
	in_child([] {
		if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL))
			perror("mount");
		take_and_compare();
	});
}

static void take_at_once()
{
	enum { TAKERS = 8 };
	int ready[2], leave[2];
	char byte;
	if (pipe(ready) || pipe(leave))
		return;
	double begin = now();
	for (int i = 0; i < TAKERS; i++)
		if (fork() == 0) {
			take(CU_MEM_ACCESS_FLAGS_PROT_READ, "one of eight");
			close(leave[1]);
			if (write(ready[1], "r", 1) != 1 || read(leave[0], &byte, 1) != 0)
				say("  a pipe failed\n");
			_exit(0);
		}
	for (int i = 0; i < TAKERS; i++)
		if (read(ready[0], &byte, 1) != 1)
			return;
	say("eight together: %.0f ms\n", now() - begin);
	device_says("eight have it");
	close(leave[0]);
	close(leave[1]);
	while (wait(NULL) > 0)
		;
}

/* The driver's checkpoint of a process that has such memory: of its maker, or of one that imported it. */
static void checkpoint(bool maker, bool unmapped)
{
	int ready[2], go_on[2];
	char byte = 0;
	if (pipe(ready) || pipe(go_on))
		return;
	fflush(stdout);
	pid_t subject = fork();
	if (subject == 0) {
		CUdeviceptr at = 0;
		unsigned seen = 0;
		if (maker) {
			make();
		} else {
			at = take(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "an importer");
			if (unmapped) {
				NEED(cuMemUnmap(at, count * SIZE));
				for (int i = 0; i < count; i++)
					NEED(cuMemRelease(handles[i]));
			}
		}
		if (write(ready[1], "r", 1) != 1 || read(go_on[0], &byte, 1) != 1)
			_exit(1);
		if (at && !unmapped && !TELL(cuMemcpyDtoH(&seen, at + 4, sizeof seen)))
			say("  it goes on, and reads %#x\n", seen);
		_exit(0);
	}
	if (read(ready[0], &byte, 1) != 1)
		return;
	say("checkpoint of %s\n", maker ? "the maker" : unmapped ? "an importer that has unmapped it" : "an importer");
	pid_t checkpointer = fork();
	if (checkpointer == 0) {
		static const char *const steps[] = {"Lock", "Checkpoint", "Restore", "Unlock"};
		NEED(cuInit(0));
		for (int i = 0; i < 4; i++) {
			char name[64];
			int (*step)(int, void *);
			CUdriverProcAddressQueryResult found;
			union {
				unsigned timeout_ms;
				char space[4096];
			} arguments = {};
			if (i == 0)
				arguments.timeout_ms = 10000;
			snprintf(name, sizeof name, "cuCheckpointProcess%s", steps[i]);
			NEED(cuGetProcAddress(name, (void **)&step, 12080, 0, &found));
			double begin = now();
			int code = step(subject, &arguments);
			say("  %s: %d in %.0f ms\n", steps[i], code, now() - begin);
			if (i == 1)
				device_says("  then");
			if (i == 2 && code)
				_exit(1); // it stays where it is, for good
		}
		_exit(0);
	}
	int status = 0;
	waitpid(checkpointer, &status, 0);
	if (status) {
		kill(subject, SIGKILL);
		say("  it cannot go on, and is killed\n");
	} else if (write(go_on[1], "g", 1) != 1) {
		say("  a pipe failed\n");
	}
	waitpid(subject, NULL, 0);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		count = atoi(argv[1]);
	if (argc > 2 || count < 2 || count > MOST) {
		fprintf(stderr, "ownerless [GIB], from 2 to %d\n", MOST);
		return 2;
	}
	first = getpid();
	sockaddr_un a = address();
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listener, (sockaddr *)&a, sizeof a) || listen(listener, 16)) {
		perror("the holder's socket");
		return 1;
	}
	pid_t holder = fork();
	if (holder == 0)
		hold(listener);
	close(listener);
	device_says("at the start");
	in_child([] {
		make();
		kill(getpid(), SIGKILL);
	});
	device_says("the maker is killed, the holder has the descriptors");
	in_child(take_and_compare);
	device_says("the taker is gone");
	in_child(take_twice);
	in_child(make_read_only);
	in_child(export_again);
	device_says("the importer that exported is gone");
	in_child(take_and_compare);
	in_child(copy_into_read_only);
	in_child(write_into_read_only);
	say("in a PID namespace of its own\n");
	in_child(take_in_namespaces);
	in_child(take_at_once);
	checkpoint(false, false);
	checkpoint(false, true);
	checkpoint(true, false);
	device_says("the last maker is gone, too");
	ask('D', NULL, NULL);
	device_says("the holder has closed the descriptors");
	kill(holder, SIGKILL);
	return 0;
}
