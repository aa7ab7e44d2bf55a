/* Two processes map memory that the other has made, by the driver's calls of PyTorch's symmetric memory, in its order
 * (c10d/symm_mem/CUDASymmetricMemory.cu, torch 2.9 to 2.11), with descriptors sent over a socket; and like its
 * expandable segments, by pidfd_getfd. They are paused and resumed together, a hundred times; one dies, frees, or
 * imports what it may not. Called as: symmetric WHAT */
#include "mapping.h"
#include "pair.h"

static const char *what; /* is done */

enum { NOT_READY = 600, GONE = 400 };
enum { BLOCK = 4 << 20, PAD = 2048, BUFFER = BLOCK - PAD };

/* As PyTorch before 2.8 and cuda-python do; it works only under tms run. */
static void *from_the_driver(const char *name)
{
	void *f = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name);
	CHECK(f);
	return f;
}

struct block {
	uint64_t handle;
	char *base;
};

static void map_block(struct block *block)
{
	uintptr_t address = 0;
	EXPECT(cu.cuMemAddressReserve(&address, BLOCK, 0, 0, 0), 0);
	EXPECT(cu.cuMemMap(address, BLOCK, 0, block->handle, 0), 0);
	EXPECT(cu.cuMemSetAccess(address, BLOCK, &readwrite, 1), 0);
	block->base = (char *)address;
}

static void unmap_block(struct block *block)
{
	EXPECT(cudaDeviceSynchronize(), 0);
	EXPECT(cu.cuMemUnmap((uintptr_t)block->base, BLOCK), 0);
	EXPECT(cu.cuMemAddressFree((uintptr_t)block->base, BLOCK), 0);
	block->base = NULL;
}

static void drop_block(struct block *block)
{
	unmap_block(block);
	EXPECT(cu.cuMemRelease(block->handle), 0);
}

static uint64_t created(const char *tag)
{
	uint64_t handle = 0;
	size_t granularity = 0;
	EXPECT(cu.cuMemGetAllocationGranularity(&granularity, &exportable, 1), 0);
	EXPECT(BLOCK % granularity, 0);
	enter(tag, true);
	EXPECT(cu.cuMemCreate(&handle, BLOCK, &exportable, 0), 0);
	leave();
	return handle;
}

static struct block allocated(const char *tag)
{
	struct block block = {.handle = created(tag)};
	map_block(&block);
	EXPECT(cudaMemset(block.base, 0, BLOCK), 0);
	return block;
}

static int exported(uint64_t handle)
{
	int fd = -1;
	EXPECT(cu.cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0), 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	return fd;
}

static int import(uint64_t *handle, int fd)
{
	return cu.cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd, POSIX_FD);
}

static struct block imported(int fd)
{
	struct block block = {0};
	EXPECT(import(&block.handle, fd), 0);
	map_block(&block);
	return block;
}

/* make_peer_alloc_info */
static struct block rendezvous(struct block own)
{
	int fd = exported(own.handle);
	send_fd(fd);
	int theirs = receive_fd();
	struct block other = imported(theirs);
	close(theirs);
	meet();
	close(fd);
	return other;
}

/* Allocates a block with contents, and exports it to the other process. */
static struct block sent(void)
{
	struct block block = allocated("t");
	fill(block.base, BUFFER, 1);
	int fd = exported(block.handle);
	send_fd(fd);
	close(fd);
	return block;
}

static void signal_pad(struct block block, unsigned word, unsigned value)
{
	EXPECT(cudaMemcpy(block.base + BUFFER + 4 * word, &value, sizeof value, 1), 0);
}

static unsigned signalled(struct block block, unsigned word)
{
	unsigned value;
	EXPECT(cudaMemcpy(&value, block.base + BUFFER + 4 * word, sizeof value, 2), 0);
	return value;
}

static void mutual(void)
{
	struct block own = allocated("symmetric"), other = rendezvous(own);
	struct random r = {(uint64_t)getpid() * 2654435761u + 1};
	char *copy = pausable(BUFFER, "other", false);
	void *stream = NULL;
	EXPECT(cudaStreamCreate(&stream), 0);
	void *graph = captured_copy(stream, copy, other.base, BUFFER);
	struct prop prop = {0};
	EXPECT(cu.cuMemGetAllocationPropertiesFromHandle(&prop, other.handle), 0);
	EXPECT(prop.handle_types, POSIX_FD);
	size_t before = sim_stat("handles");
	int open_before = descriptors();
	for (unsigned cycle = 0; cycle < (unsigned)often(100, 16); cycle++) {
		fill(own.base, BUFFER, 2 * cycle + (unsigned)rank);
		signal_pad(other, (unsigned)rank, cycle); /* the other process keeps what one writes */
		meet();
		EXPECT(cudaGraphLaunch(graph, stream), 0);
		EXPECT(cudaStreamSynchronize(stream), 0);
		CHECK(filled(copy, BUFFER, 2 * cycle + (unsigned)!rank));
		EXPECT(signalled(own, (unsigned)!rank), cycle);
		meet();
		usleep(draw(&r, 3000));
		EXPECT(tms_pause(cycle % 2 ? "symmetric" : NULL), 0);
		meet();
		EXPECT(sim_stat("handles"), cycle % 2); /* of copy */
		usleep(draw(&r, 3000));
		EXPECT(tms_resume(NULL), 0);
		EXPECT(sim_stat("handles"), before);
		CHECK(filled(own.base, BUFFER, 2 * cycle + (unsigned)rank));
		CHECK(filled(other.base, BUFFER, 2 * cycle + (unsigned)!rank));
		EXPECT(signalled(own, (unsigned)!rank), cycle);
		meet();
	}
	no_more_descriptors_than(open_before);
	/* Each drops what it has of the other at any time. */
	drop_block(rank ? &other : &own);
	drop_block(rank ? &own : &other);
	EXPECT(cudaFree(copy), 0);
	meet();
	EXPECT(sim_stat("handles"), 0);
}

/* Like expandable segments: the descriptor is taken out of the process that has it, and many pieces are mapped side by
 * side. */
static void taken(void)
{
	enum { CHUNKS = 4 };
	uintptr_t base = 0;
	uint64_t handles[CHUNKS];
	int fds[CHUNKS];
	EXPECT(cu.cuMemAddressReserve(&base, CHUNKS * BLOCK, 0, 0, 0), 0);
	if (rank == 0) {
		for (int i = 0; i < CHUNKS; i++) {
			handles[i] = created("expandable");
			EXPECT(cu.cuMemMap(base + i * BLOCK, BLOCK, 0, handles[i], 0), 0);
			fds[i] = exported(handles[i]);
		}
		EXPECT(cu.cuMemSetAccess(base, CHUNKS * BLOCK, &readwrite, 1), 0);
		fill((void *)base, CHUNKS * BLOCK, 1);
		prctl(PR_SET_PTRACER, other_process);
		tell(channel, fds, sizeof fds);
		meet();
	} else {
		hear(channel, fds, sizeof fds);
		int process = (int)syscall(SYS_pidfd_open, other_process, 0);
		CHECK(process >= 0);
		for (int i = 0; i < CHUNKS; i++) {
			int fd = (int)syscall(SYS_pidfd_getfd, process, fds[i], 0);
			CHECK(fd >= 0);
			EXPECT(import(&handles[i], fd), 0);
			close(fd);
			EXPECT(cu.cuMemMap(base + i * BLOCK, BLOCK, 0, handles[i], 0), 0);
		}
		EXPECT(cu.cuMemSetAccess(base, CHUNKS * BLOCK, &readwrite, 1), 0);
		close(process);
		CHECK(filled((void *)base, CHUNKS * BLOCK, 1));
		meet();
	}
	for (unsigned cycle = 1; cycle < (unsigned)often(20, 6); cycle++) {
		EXPECT(tms_pause("expandable"), 0);
		EXPECT(sim_stat("handles"), 0);
		meet();
		EXPECT(tms_resume("expandable"), 0);
		CHECK(filled((void *)base, CHUNKS * BLOCK, cycle));
		meet();
		if (rank == (int)cycle % 2)
			fill((void *)base, CHUNKS * BLOCK, cycle + 1);
		meet();
	}
	EXPECT(cu.cuMemUnmap(base, CHUNKS * BLOCK), 0);
	for (int i = 0; i < CHUNKS; i++)
		EXPECT(cu.cuMemRelease(handles[i]), 0);
	meet();
	EXPECT(sim_stat("handles"), 0);
}

/* An import counts whether it is mapped or not: like paused memory it may be mapped, unmapped, and given access. */
static void moved(void)
{
	if (rank == 0) {
		struct block own = sent();
		meet(); /* it is imported */
		EXPECT(tms_pause_within(NULL, 0.05), NOT_READY);
		meet(); /* the other pauses */
		for (int i = 0; i < 2; i++) {
			meet();
			PAUSE_AND_RESUME(NULL);
			meet();
		}
		meet();
		drop_block(&own);
		return;
	}
	int fd = receive_fd();
	struct block block = {0};
	EXPECT(import(&block.handle, fd), 0);
	meet();
	meet();
	EXPECT(tms_pause(NULL), 0); /* of unmapped memory */
	EXPECT(sim_stat("handles"), 0);
	meet();
	map_block(&block);
	uintptr_t first = (uintptr_t)block.base;
	meet();
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(block.base, BUFFER, 1));
	EXPECT(tms_pause(NULL), 0);
	meet();
	EXPECT(cu.cuMemUnmap(first, BLOCK), 0);
	uint64_t again = 0;
	EXPECT(cu.cuMemRetainAllocationHandle(&again, (void *)first), 1); /* nothing is there */
	meet();
	EXPECT(tms_resume(NULL), 0);
	EXPECT(sim_stat("handles"), 1);
	map_block(&block);
	CHECK((uintptr_t)block.base != first);
	CHECK(filled(block.base, BUFFER, 1));
	EXPECT(cu.cuMemAddressFree(first, BLOCK), 0);
	/* It can be retained like any handle of this library. Another import gives another handle. */
	EXPECT(cu.cuMemRetainAllocationHandle(&again, block.base + 100), 0);
	CHECK(again == block.handle);
	EXPECT(cu.cuMemRelease(again), 0);
	uint64_t second = 0;
	int once_more = exported(block.handle);
	EXPECT(import(&second, once_more), 0);
	EXPECT(import(&again, fd), 0);
	CHECK(second != block.handle && again != second);
	close(fd);
	close(once_more);
	struct block copy = {.handle = second};
	map_block(&copy);
	CHECK(filled(copy.base, BUFFER, 1));
	fill(copy.base, BUFFER, 2);
	CHECK(filled(block.base, BUFFER, 2));
	EXPECT(cu.cuMemRelease(again), 0);
	EXPECT(cu.cuMemRelease(copy.handle), 0); /* the mapping keeps it */
	EXPECT(cu.cuMemRelease(copy.handle), 1);
	CHECK(filled(copy.base, BUFFER, 2));
	unmap_block(&copy);
	drop_block(&block);
	EXPECT(sim_stat("handles"), 0);
	meet();
}

/* The owner of the memory frees it, or is killed. */
static void gone(void)
{
	bool killed = strcmp(what, "killed") == 0;
	int fd;
	if (rank == 0) {
		struct block own = sent();
		meet();
		meet();
		if (killed)
			raise(SIGKILL);
		drop_block(&own);
		meet();
		meet();
		return;
	}
	fd = receive_fd();
	struct block other = imported(fd);
	char *own = kept_memory(BLOCK, "t", 2);
	CHECK(filled(other.base, BUFFER, 1));
	meet();
	EXPECT(tms_pause(NULL), 0); /* alone: no other process has its memory */
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(other.base, BUFFER, 1));
	meet();
	if (killed) {
		other_ends();
		CHECK(filled(other.base, BUFFER, 1)); /* the driver keeps it */
	} else {
		meet();
	}
	uint64_t second = 0;
	EXPECT(import(&second, fd), GONE);
	CHECK(strstr(tms_last_error(), killed ? "the process has ended" : "it was freed"));
	EXPECT(tms_pause(NULL), 0);
	FAILS(tms_resume(NULL), GONE, "cuMemUnmap");
	CHECK(filled(own, BLOCK, 2));
	drop_block(&other);
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(own, BLOCK, 2));
	if (!killed)
		meet();
}

static void importer_dies(void)
{
	if (rank == 1) {
		(void)imported(receive_fd());
		meet();
		for (;;)
			pause();
	}
	struct block own = sent();
	meet();
	FAILS(tms_pause_within(NULL, 0.05), NOT_READY, "nothing has changed");
	EXPECT(kill(other_process, SIGKILL), 0);
	other_ends();
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(own.base, BUFFER, 1));
}

/* Memory cannot be imported while it is paused, and can be afterwards. */
static void while_paused(void)
{
	if (rank == 0) {
		struct block own = allocated("t");
		fill(own.base, BUFFER, 1);
		EXPECT(tms_pause(NULL), 0);
		int fd = exported(own.handle); /* holds nothing, so it can be exported */
		send_fd(fd);
		close(fd);
		meet();
		EXPECT(tms_resume(NULL), 0);
		meet();
		meet();
		drop_block(&own);
		return;
	}
	int fd = receive_fd();
	uint64_t handle = 0;
	FAILS(import(&handle, fd), NOT_READY, "paused where it was allocated");
	meet();
	meet();
	struct block other = imported(fd);
	CHECK(filled(other.base, BUFFER, 1));
	drop_block(&other);
	meet();
}

static int garbage(const void *data, size_t size, int seals)
{
	int fd = memfd_create("garbage", MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	if (seals)
		EXPECT(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void refused(void)
{
	fetch(by_version);
	enum { ALL = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
	struct block own = allocated("t");
	fill(own.base, BUFFER, 1);
	int fd = exported(own.handle);
	char token[64], changed[64];
	EXPECT(pread(fd, token, sizeof token, 0), sizeof token);
	CHECK(memcmp(token, "tms-mem1", 8) == 0);
	EXPECT(write(fd, token, 1), -1);
	uint64_t handle = 0;
	/* Importing this process's own memory gives the same handle once more. */
	EXPECT(import(&handle, fd), 0);
	CHECK(handle == own.handle);
	EXPECT(cu.cuMemRelease(handle), 0);
	EXPECT(import(NULL, fd), 1);
	/* A descriptor that no export has made: the driver refuses it, */
	EXPECT(import(&handle, -1), 1);
	EXPECT(import(&handle, garbage(token, sizeof token, 0)), 1);
	EXPECT(import(&handle, garbage(token, sizeof token - 1, ALL)), 1);
	memset(changed, 0x5a, sizeof changed);
	EXPECT(import(&handle, garbage(changed, sizeof changed, ALL)), 1);
	/* and the library this one. */
	memcpy(changed, token, 8);
	EXPECT(import(&handle, garbage(changed, sizeof changed, ALL)), GONE);
	memcpy(changed, token, sizeof changed);
	changed[8 + 16]++; /* a byte of the id */
	EXPECT(import(&handle, garbage(changed, sizeof changed, ALL)), GONE);
	memcpy(changed, token, sizeof changed);
	uint32_t parent = (uint32_t)getppid();
	memcpy(changed + 8, &parent, sizeof parent);
	EXPECT(import(&handle, garbage(changed, sizeof changed, ALL)), GONE);
	/* Memory not made to be exported: the driver's refusal. */
	struct prop private = exportable;
	private.handle_types = 0;
	IN_REGION(EXPECT(cu.cuMemCreate(&handle, BLOCK, &private, 0), 0));
	int none = -1;
	EXPECT(cu.cuMemExportToShareableHandle(&none, handle, POSIX_FD, 0), 1);
	EXPECT(cu.cuMemExportToShareableHandle(NULL, own.handle, POSIX_FD, 0), 1);
	EXPECT(cu.cuMemRelease(handle), 0);
	/* The memory is pausable all the time, exported or not. */
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(own.base, BUFFER, 1));
	/* A process without the library gets the driver's refusal. */
	int plain = dup(fd);
	pid_t child = fork();
	if (child == 0) {
		char number[16];
		unsetenv("LD_PRELOAD");
		snprintf(number, sizeof number, "%d", plain);
		execl("/proc/self/exe", "symmetric", "plain", number, (char *)NULL);
		_exit(99);
	}
	EXPECT(code_of(child), 1);
	/* A child of fork cannot use it, as it cannot use CUDA. */
	child = fork();
	if (child == 0)
		_exit(import(&handle, fd));
	EXPECT(code_of(child), 3);
	/* The memory ends with its last handle and mapping, whatever descriptors there are. */
	drop_block(&own);
	EXPECT(import(&handle, fd), GONE);
	EXPECT(sim_stat("handles"), 0);
}

/* Multicast: the binding goes through, and from then on the memory is not paused. */
static void multicast(void)
{
	fetch(by_version);
	struct block bound = allocated("t"), free_one = allocated("t");
	fill(bound.base, BUFFER, 1);
	uint64_t object = 0;
	const struct multicast prop = {.devices = 1, .size = BLOCK, .handle_types = POSIX_FD};
	__typeof__(cuMulticastBindMem) *bind = by_version("cuMulticastBindMem");
	EXPECT(((__typeof__(cuMulticastCreate) *)by_version("cuMulticastCreate"))(&object, &prop), 0);
	EXPECT(((__typeof__(cuMulticastAddDevice) *)by_version("cuMulticastAddDevice"))(object, 0), 0);
	/* A binding that the driver refuses leaves the memory pausable. */
	EXPECT(bind(object, 0, bound.handle, 0, 2 * BLOCK, 0), 1);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 1); /* the object */
	FAILS(bind(object, 0, bound.handle, 0, BLOCK, 0), 801, "resume");
	EXPECT(tms_resume(NULL), 0);
	EXPECT(bind(object, 0, bound.handle, 0, BLOCK, 0), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(sim_stat("handles"), 2);
	CHECK(filled(bound.base, BUFFER, 1));
	EXPECT(tms_resume(NULL), 0);
	EXPECT(((__typeof__(cuMulticastUnbind) *)by_version("cuMulticastUnbind"))(object, 0, 0, BLOCK), 0);
	EXPECT(cu.cuMemRelease(object), 0);
	drop_block(&bound);
	drop_block(&free_one);
	EXPECT(sim_stat("handles"), 0);
}

/* An import to which two devices have access, like the program's own memory. */
static void devices(void)
{
	static const struct access both[] = {{1, 0, 3}, {1, 1, 3}};
	int (*granted)(unsigned long long *, const int[2], uintptr_t) = (__typeof__(granted))simulator("cuMemGetAccess");
	int fd = -1;
	if (rank == 0) {
		struct block own = sent();
		for (int i = 0; i < 3; i++) {
			meet();
			EXPECT(tms_pause(NULL), 0);
			meet();
			EXPECT(tms_resume(NULL), 0);
		}
		meet();
		drop_block(&own);
		return;
	}
	fd = receive_fd();
	void *copy = NULL, *stream = NULL;
	struct block other = imported(fd);
	EXPECT(cudaSetDevice(1), 0);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaMalloc(&copy, BUFFER), 0);
	EXPECT(cu.cuMemSetAccess((uintptr_t)other.base, BLOCK, both, 2), 0);
	for (int i = 0; i < 3; i++) {
		unsigned long long flags = 0;
		for (int device = 0; device < 2; device++) {
			EXPECT(granted(&flags, (int[2]){1, device}, (uintptr_t)other.base), 0);
			EXPECT(flags, 3);
		}
		CHECK(filled(other.base, BUFFER, 1));
		EXPECT(cudaMemset(copy, 0, BUFFER), 0);
		EXPECT(cudaMemcpyAsync(copy, other.base, BUFFER, 3, stream), 0);
		meet();
		EXPECT(tms_pause(NULL), 0); /* waits until the copy is done */
		EXPECT(sim_stat("handles"), 0);
		CHECK(filled(copy, BUFFER, 1));
		meet();
		EXPECT(tms_resume(NULL), 0);
	}
	meet();
	drop_block(&other);
}

/* Under tms run, memory that the library has exported by descriptor is no obstacle, because its importer unmaps it
 * first. */
static void gated(void)
{
	fetch(from_the_driver);
	struct block own = allocated("t");
	fill(own.base, BUFFER, 1);
	int fd = exported(own.handle);
	for (int i = 0; i < 3; i++) {
		EXPECT(tms_pause_gated(NULL, 60), 0);
		EXPECT(sim_stat("handles"), 0);
		EXPECT(tms_resume(NULL), 0);
		CHECK(filled(own.base, BUFFER, 1));
	}
	close(fd);
	drop_block(&own);
}

static void *import_held_up(void *fd)
{
	static uint64_t handle;
	EXPECT(import(&handle, *(int *)fd), 0);
	return &handle;
}

/* All are paused from outside while one is importing: it is held up until they are resumed. */
static void held_up(void)
{
	int fd;
	if (rank == 0) {
		struct block own = sent();
		EXPECT(tms_pause_gated(NULL, 60), 0);
		meet();
		meet(); /* the other runs on */
		usleep(50000);
		EXPECT(tms_resume(NULL), 0);
		meet();
		drop_block(&own);
		return;
	}
	fd = receive_fd();
	void *own = pausable(BLOCK, "t", true), *done;
	pthread_t importer;
	struct timespec now;
	EXPECT(tms_pause_gated(NULL, 60), 0);
	meet();
	start(&importer, import_held_up, &fd);
	clock_gettime(CLOCK_REALTIME, &now);
	now.tv_sec++;
	EXPECT(pthread_timedjoin_np(importer, &done, &now), ETIMEDOUT);
	EXPECT(tms_resume(NULL), 0);
	meet();
	EXPECT(pthread_join(importer, &done), 0);
	struct block other = {.handle = *(uint64_t *)done};
	map_block(&other);
	CHECK(filled(other.base, BUFFER, 1));
	meet();
	EXPECT(tms_pause_gated(NULL, 60), 0);
	EXPECT(sim_stat("handles"), 0);
	drop_block(&other);
	EXPECT(cudaFree(own), 0);
}

static void as_rank(void)
{
	fetch(by_version);
	CHECK(RUN_PART(what, {"mutual", mutual}, {"taken", taken}, {"moved", moved}, {"freed", gone}, {"killed", gone},
		       {"importer_dies", importer_dies}, {"while_paused", while_paused}, {"devices", devices},
		       {"held_up", held_up}));
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	what = argv[1];
	if (strcmp(what, "plain") == 0) {
		uint64_t handle;
		__typeof__(cuMemImportFromShareableHandle) *cuda_import = simulator("cuMemImportFromShareableHandle");
		if (((__typeof__(cuInit) *)simulator("cuInit"))(0) != 0)
			return 98;
		return cuda_import(&handle, (void *)(intptr_t)atoi(argv[2]), POSIX_FD);
	}
	if (!RUN_PART(what, {"refused", refused}, {"multicast", multicast}, {"gated", gated}))
		in_two(as_rank, strcmp(what, "killed") == 0 ? 0 : strcmp(what, "importer_dies") == 0 ? 1 : -1);
	return 0;
}
