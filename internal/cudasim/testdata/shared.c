// A process that follows commands: it reads one a line, and prints one answer a line. Several such processes share a
// device.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

enum { MOST = 4096 };
static CUdeviceptr held[MOST];
static size_t sizes[MOST];
static int count;

static int take(size_t size)
{
	int code = count == MOST ? 1 : (int)cuMemAlloc_v2(&held[count], size);
	if (!code)
		sizes[count++] = size;
	return code;
}

static void release(int index)
{
	OK(cuMemFree_v2(held[index]));
	held[index] = held[--count];
	sizes[index] = sizes[count];
}

// Makes allocations of 1 to 16 pages, freeing some in between, and returns how many bytes it holds at the end.
static size_t churn(int allocations)
{
	unsigned state = (unsigned)getpid();
	size_t total = 0;
	for (int done = 0; done < allocations;) {
		state = state * 1103515245 + 12345;
		if (count == MOST || (count && state >> 16 & 1))
			release((int)(state >> 17) % count);
		else if (!take(4096 * (1 + (state >> 20) % 16)))
			done++;
	}
	for (int i = 0; i < count; i++)
		total += sizes[i];
	return total;
}

static int begin(void)
{
	CUcontext context;
	int code = cuInit(0);
	if (!code) {
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		OK(cuCtxSetCurrent(context));
	}
	return code;
}

// Joins and leaves a number of times, and in between takes more than half of the memory, if it can. Returns how often
// another process had as much at that moment, for which there is no room.
static int join_and_leave(int times)
{
	int file = open(getenv("HOLDER"), O_RDWR | O_CREAT | O_CLOEXEC, 0600), collisions = 0;
	CHECK(file >= 0);
	for (int i = 0; i < times; i++) {
		OK(begin());
		if (!take(40 * MIB)) {
			collisions += flock(file, LOCK_EX | LOCK_NB) != 0;
			sched_yield();
			flock(file, LOCK_UN);
		}
		cudasim_reset();
		count = 0;
	}
	return collisions;
}

static _Atomic bool is_busy, calm;

static void calm_down(int signal)
{
	(void)signal;
	calm = true;
}

static void wait_in_host_function(void *unused)
{
	(void)unused;
	for (is_busy = true; !calm;)
		usleep(1000);
}

// Stays inside a call of the driver until SIGUSR1.
static void *busy(void *unused)
{
	CUcontext context;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	CUstream stream;
	OK(cuStreamCreate(&stream, 1));
	OK(cuLaunchHostFunc(stream, wait_in_host_function, NULL));
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return unused;
}

// Restores a process so that its devices change places: the first becomes the last. Without the last pairs it cannot.
static int restore_reversed(int process, int without)
{
	CUcheckpointGpuPair pairs[16];
	int devices;
	OK(cuDeviceGetCount(&devices));
	for (int i = 0; i < devices; i++) {
		OK(cuDeviceGetUuid(&pairs[i].oldUuid, i));
		OK(cuDeviceGetUuid(&pairs[i].newUuid, devices - 1 - i));
	}
	CUcheckpointRestoreArgs arguments = {.gpuPairs = pairs, .gpuPairsCount = (unsigned)(devices - without)};
	return (int)cuCheckpointProcessRestore(process, &arguments);
}

// Makes memory that only an open descriptor holds.
static int outlive(size_t size)
{
	CUmemAllocationProp prop = device_memory(0);
	CUmemGenericAllocationHandle handle;
	int fd;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(cuMemCreate(&handle, size, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return (int)cuMemRelease(handle);
}

// What a command answers if that is one number.
static int obey(const char *command, unsigned long number)
{
	static unsigned timeout;
	const int process = (int)number;
#define IS(name) (!strcmp(command, name))
	if (IS("start"))
		return begin();
	if (IS("join_and_leave"))
		return join_and_leave((int)number);
	if (IS("allocate"))
		return take(number);
	if (IS("outlive"))
		return outlive(number);
	if (IS("fill"))
		return (int)cuMemsetD8_v2(held[0], (unsigned char)number, sizes[0]);
	if (IS("export"))
		return (int)cuIpcGetMemHandle(&(CUipcMemHandle){0}, held[0]);
	if (IS("wait"))
		return wait(NULL) > 0;
	if (IS("lock"))
		return (int)cuCheckpointProcessLock(process, &(CUcheckpointLockArgs){.timeoutMs = timeout});
	if (IS("checkpoint"))
		return (int)cuCheckpointProcessCheckpoint(process, NULL);
	if (IS("restore"))
		return (int)cuCheckpointProcessRestore(process, NULL);
	if (IS("reverse"))
		return restore_reversed(process, 0);
	if (IS("incomplete"))
		return restore_reversed(process, 1);
	if (IS("place")) { // of its own device of this number
		CUuuid uuid;
		OK(cuDeviceGetUuid(&uuid, process));
		return uuid.bytes[15];
	}
	if (IS("mebibytes")) // free on its own device of this number
		return (int)(cudasim_stat(number ? "free:1" : "free:0") / MIB);
	if (IS("unlock"))
		return (int)cuCheckpointProcessUnlock(process, NULL);
	if (IS("timeout")) // of locks, in milliseconds
		timeout = (unsigned)number;
	while (IS("free") && count) // all
		release(0);
	if (IS("reset")) {
		cudasim_reset();
		count = 0;
	}
	if (IS("fork")) { // a child that has run its handlers, and lives for that many milliseconds
		int lives[2];
		CHECK(!pipe(lives));
		pid_t child = fork();
		if (!child) {
			CHECK(write(lives[1], "", 1) == 1);
			usleep((useconds_t)number * 1000);
			exit(0);
		}
		CHECK(read(lives[0], &(char){0}, 1) == 1);
		close(lives[0]);
		close(lives[1]);
		return child;
	}
	if (IS("busy")) {
		pthread_t thread;
		calm = is_busy = false;
		signal(SIGUSR1, calm_down);
		CHECK(!pthread_create(&thread, NULL, busy, NULL));
		pthread_detach(thread);
		while (!is_busy)
			usleep(1000);
	}
	CHECK(IS("timeout") || IS("free") || IS("reset") || IS("busy"));
	return 0;
}

int main(int argc, char **argv)
{
	char command[16];
	unsigned long number;
	(void)argc;
	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0); // so that exec loses no input
	while (scanf("%15s %lu", command, &number) == 2) {
		if (IS("exec")) {
			execv(argv[0], argv);
		} else if (IS("churn")) {
			printf("%zu\n", churn((int)number));
		} else if (IS("info")) {
			size_t available, total;
			OK(cuMemGetInfo_v2(&available, &total));
			CHECK(available == cudasim_stat("free:0") && total == cudasim_stat("total:0"));
			CHECK(total - available == cudasim_stat("used:0"));
			printf("%zu of %zu\n", available, total);
		} else if (IS("state")) {
			CUprocessState state = 99;
			int code = (int)cuCheckpointProcessGetState((int)number, &state);
			printf("%d %d\n", code, code ? -1 : (int)state);
		} else if (IS("value")) {
			unsigned char value = 0;
			int code = (int)cuMemcpyDtoH_v2(&value, held[0] + sizes[0] - 1, 1);
			printf("%d %d\n", code, value);
		} else {
			printf("%d\n", obey(command, number));
		}
	}
	return 0;
}
