/* As much of NCCL as communicators need to be made, used, suspended and destroyed. A suspend frees memory of its own,
 * and its ranks wait for one another. Ranks of other processes wait in the file FAKE_NCCL_SHARED, which is all zeros.
 * If the file is larger than a page, operations on a stream wait there until the other ranks have launched theirs. With
 * FAKE_NCCL=fail or hang, a suspend fails or hangs. With FAKE_NCCL_EXPORTS a rank exports memory, and imports what it has
 * exported, until it is suspended. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemset(void *, int, size_t);
int cudaSetDevice(int);
int cudaGetDevice(int *);
int cudaDeviceSynchronize(void);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);
int cudaStreamIsCapturing(void *, int *);

enum { OK, CUDA_ERROR, INVALID_USAGE = 5 };
enum { HELD = 4 << 20, KEPT = 4096 }; /* a rank's bytes, and those whose contents matter */
struct id {
	char internal[128];
};

struct clique {
	struct id id;
	struct clique *next;
	int waiting;
	unsigned round;
};
struct comm {
	struct clique *clique;
	int rank, ranks, device;
	unsigned char *memory, *saved;
	uint64_t handles[2];
	uintptr_t at[2];
	unsigned used; /* how often */
};
static struct clique *cliques;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct clique *clique_of(struct id id)
{
	struct clique *c;
	pthread_mutex_lock(&lock);
	for (c = cliques; c && memcmp(&c->id, &id, sizeof id) != 0; c = c->next)
		;
	if (!c) {
		c = calloc(1, sizeof *c);
		c->id = id, c->next = cliques, cliques = c;
	}
	pthread_mutex_unlock(&lock);
	return c;
}

/* Memory that is shared, mapped as its own and as a peer's. */
enum { SHARED = 2 << 20, POSIX_FD = 1 };
static struct {
	int (*cuMemAddressReserve)(uintptr_t *, size_t, size_t, uintptr_t, unsigned long long);
	int (*cuMemCreate)(uint64_t *, size_t, const void *, unsigned long long);
	int (*cuMemMap)(uintptr_t, size_t, size_t, uint64_t, unsigned long long);
	int (*cuMemUnmap)(uintptr_t, size_t);
	int (*cuMemRelease)(uint64_t);
	int (*cuMemExportToShareableHandle)(void *, uint64_t, int, unsigned long long);
	int (*cuMemImportFromShareableHandle)(uint64_t *, void *, int);
} cu;

static int share(struct comm *comm)
{
	const struct {
		int type, handles, where, device;
		uint64_t none[2];
	} properties = {1, POSIX_FD, 1, comm->device, {0}};
	int fd;
	if (!getenv("FAKE_NCCL_EXPORTS"))
		return OK;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
#define FETCH(name) *(void **)&cu.name = dlsym(driver, #name)
	FETCH(cuMemAddressReserve), FETCH(cuMemCreate), FETCH(cuMemMap), FETCH(cuMemUnmap), FETCH(cuMemRelease);
	FETCH(cuMemExportToShareableHandle), FETCH(cuMemImportFromShareableHandle);
	if (cu.cuMemCreate(&comm->handles[0], SHARED, &properties, 0) ||
	    cu.cuMemExportToShareableHandle(&fd, comm->handles[0], POSIX_FD, 0) ||
	    cu.cuMemImportFromShareableHandle(&comm->handles[1], (void *)(intptr_t)fd, POSIX_FD) || close(fd))
		return CUDA_ERROR;
	for (int i = 0; i < 2; i++)
		if ((!comm->at[i] && cu.cuMemAddressReserve(&comm->at[i], SHARED, 0, 0, 0)) ||
		    cu.cuMemMap(comm->at[i], SHARED, 0, comm->handles[i], 0))
			return CUDA_ERROR;
	return OK;
}

static int unshare(struct comm *comm)
{
	for (int i = 1; i >= 0 && comm->handles[i]; i--)
		if (cu.cuMemUnmap(comm->at[i], SHARED) || cu.cuMemRelease(comm->handles[i]))
			return CUDA_ERROR;
	comm->handles[0] = comm->handles[1] = 0;
	return OK;
}

/* Operations on streams, of several processes: how many each rank has launched of a sequence. */
enum { PAGE = 4096, RANKS = 14, OPERATIONS = 16 };
struct sequence {
	_Atomic uint64_t id;
	_Atomic uint64_t launched[RANKS];
};
struct launch {
	bool captured; /* launched with the graph */
	int count;
	struct operation {
		struct sequence *sequence;
		int own, ranks;
		uint64_t number;
	} of[OPERATIONS];
};

/* Returns what the ranks share, NULL if there are no sequences. */
static void *shared_after(size_t page)
{
	static void *_Atomic all;
	static size_t size;
	const char *path = getenv("FAKE_NCCL_SHARED");
	if (!path)
		return NULL;
	if (!all) {
		struct stat file;
		int fd = open(path, O_RDWR | O_CLOEXEC);
		fstat(fd, &file);
		size = (size_t)file.st_size;
		all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	return page < size ? (char *)all + page : NULL;
}

static uint64_t number_of(const struct clique *c, int from, int to)
{
	uint64_t id = 1;
	for (size_t i = 0; i < sizeof c->id; i++)
		id = id * 31 + (unsigned char)c->id.internal[i];
	return (id * 31 + (uint64_t)from) * 31 + (uint64_t)to;
}

static void run(void *data)
{
	struct launch *launch = data;
	for (int i = 0; i < launch->count && launch->captured; i++)
		launch->of[i].number = ++launch->of[i].sequence->launched[launch->of[i].own];
	for (int i = 0; i < launch->count; i++)
		for (int rank = 0; rank < launch->of[i].ranks; rank++)
			while (launch->of[i].sequence->launched[rank] < launch->of[i].number)
				usleep(50);
	if (!launch->captured)
		free(launch);
}

static int launch_all(struct launch *launch, void *stream)
{
	struct launch *own = malloc(sizeof *own); /* run frees it */
	const int count = launch->captured ? 0 : launch->count;
	*own = *launch;
	launch->count = 0;
	if (cudaLaunchHostFunc(stream, run, own))
		return CUDA_ERROR;
	for (int i = 0; i < count; i++)
		launch->of[i].sequence->launched[launch->of[i].own] = launch->of[i].number;
	return OK;
}

static int make(struct comm **comm, int ranks, struct id id, int rank, int device)
{
	struct comm *made = calloc(1, sizeof *made);
	*made = (struct comm){.clique = clique_of(id), .rank = rank, .ranks = ranks, .device = device};
	cudaSetDevice(device);
	if (cudaMalloc((void **)&made->memory, HELD) || cudaMemset(made->memory, 0, HELD) || share(made))
		return CUDA_ERROR;
	*comm = made;
	return OK;
}

/* Communicators begun in a group are made at its end. */
static __thread struct {
	int depth, count;
	struct {
		struct comm **comm;
		int ranks, rank, device;
		struct id id;
		void **window;
	} begun[16];
	struct launch launch;
	void *stream;
} group;

int ncclGroupStart(void)
{
	group.depth++;
	return OK;
}

int ncclGroupEnd(void)
{
	int code = group.depth ? OK : INVALID_USAGE;
	if (code || --group.depth)
		return code;
	for (int i = 0; i < group.count && !code; i++)
		if (group.begun[i].window)
			*group.begun[i].window = malloc(1);
		else
			code = make(group.begun[i].comm, group.begun[i].ranks, group.begun[i].id, group.begun[i].rank,
				    group.begun[i].device);
	group.count = 0;
	return code || !group.launch.count ? code : launch_all(&group.launch, group.stream);
}

/* One operation of one rank of a number of ranks. */
static int operate(const struct clique *c, int from, int to, int own, int ranks, void *stream)
{
	struct sequence *s = shared_after(PAGE);
	int captured;
	if (!s)
		return OK;
	if (cudaStreamIsCapturing(stream, &captured))
		return CUDA_ERROR;
	uint64_t id = number_of(c, captured ? -2 : from, to), none = 0;
	while (s->id != id && !atomic_compare_exchange_strong(&s->id, &none, id) && none != id)
		s++, none = 0;
	struct launch one = {0}, *launch = group.depth ? &group.launch : &one;
	if (launch->count == OPERATIONS || ranks > RANKS)
		return INVALID_USAGE;
	static __thread struct numbers {
		struct sequence *sequence;
		uint64_t last;
	} numbers[64]; /* a thread's own, because no other uses its ranks */
	struct numbers *n = numbers;
	launch->captured = captured;
	while (n->sequence && n->sequence != s)
		n++;
	n->sequence = s;
	launch->of[launch->count++] = (struct operation){s, own, ranks, ++n->last};
	group.stream = stream;
	return group.depth ? OK : launch_all(launch, stream);
}

int ncclCommInitRank(struct comm **comm, int ranks, struct id id, int rank)
{
	int device;
	cudaGetDevice(&device);
	if (!group.depth)
		return make(comm, ranks, id, rank, device);
	int at = group.count++;
	group.begun[at].comm = comm, group.begun[at].ranks = ranks, group.begun[at].rank = rank, group.begun[at].id = id;
	group.begun[at].device = device, group.begun[at].window = NULL;
	return OK;
}

static struct id fresh(void)
{
	static _Atomic int made;
	struct id id = {{0}};
	int now = ++made;
	pid_t self = getpid();
	memcpy(id.internal, &now, sizeof now);
	memcpy(id.internal + sizeof now, &self, sizeof self);
	id.internal[127] = 1;
	return id;
}

int ncclCommInitRankConfig(struct comm **comm, int ranks, struct id id, int rank, void *config)
{
	(void)config;
	return ncclCommInitRank(comm, ranks, id, rank);
}

int ncclCommInitAll(struct comm **comm, int ranks, const int *devices)
{
	int code = OK;
	struct id id = fresh();
	for (int i = 0; i < ranks && !code; i++)
		code = make(&comm[i], ranks, id, i, devices ? devices[i] : i);
	return code;
}

/* All ranks have the same id for the new one: the first that asks makes it. */
int ncclCommSplit(struct comm *comm, int color, int key, struct comm **new, void *config)
{
	(void)config;
	struct id id = comm->clique->id;
	id.internal[64]++, id.internal[65] = (char)color;
	return color < 0 ? (*new = NULL, OK) : make(new, comm->ranks, id, key, comm->device);
}

int ncclCommCount(struct comm *comm, int *count)
{
	*count = comm->ranks;
	return OK;
}

int ncclCommUserRank(struct comm *comm, int *rank)
{
	*rank = comm->rank;
	return OK;
}

int ncclCommCuDevice(struct comm *comm, int *device)
{
	*device = comm->device;
	return OK;
}

int ncclCommFinalize(struct comm *comm)
{
	return comm->memory ? OK : INVALID_USAGE;
}

int ncclCommDestroy(struct comm *comm)
{
	int code = comm->memory ? cudaFree(comm->memory) || unshare(comm) : INVALID_USAGE;
	free(comm);
	return code;
}

int ncclCommAbort(struct comm *comm)
{
	return ncclCommDestroy(comm);
}

/* Counts, on the default stream, in the memory that must come back. */
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, struct comm *comm, void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)operation;
	if (stream)
		return operate(comm->clique, -1, -1, comm->rank, comm->ranks, stream);
	unsigned before, now = comm->used + 1;
	if (!comm->memory || cudaSetDevice(comm->device) || cudaMemcpy(&before, comm->memory, sizeof before, 2) ||
	    before != comm->used || cudaMemcpy(comm->memory, &now, sizeof now, 1))
		return CUDA_ERROR;
	comm->used++;
	return OK;
}

int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm, void *stream)
{
	(void)from, (void)count, (void)type;
	return operate(comm->clique, comm->rank, peer, 0, 2, stream);
}

int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, void *stream)
{
	(void)to, (void)count, (void)type;
	return operate(comm->clique, peer, comm->rank, 1, 2, stream);
}

int ncclCommRegister(struct comm *comm, void *memory, size_t size, void **handle)
{
	(void)comm, (void)memory;
	*handle = size ? malloc(1) : NULL; /* NCCL_LOCAL_REGISTER=0 gives NULL */
	return OK;
}

int ncclCommDeregister(struct comm *comm, void *handle)
{
	(void)comm;
	free(handle);
	return OK;
}

int ncclCommWindowRegister(struct comm *comm, void *memory, size_t size, void **window, int flags)
{
	(void)comm, (void)memory, (void)size, (void)flags;
	if (group.depth)
		group.begun[group.count++].window = window;
	else
		*window = malloc(1);
	return OK;
}

int ncclCommWindowDeregister(struct comm *comm, void *window)
{
	return ncclCommDeregister(comm, window);
}

int ncclGetVersion(int *version)
{
	*version = VERSION;
	return OK;
}

#if VERSION >= 22907
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;

/* Cliques of several processes, by their ids. */
struct meeting {
	_Atomic uint64_t id;
	_Atomic int waiting;
	_Atomic unsigned round;
};

static struct meeting *meeting_of(struct clique *c)
{
	struct meeting *all = shared_after(0);
	if (!all)
		return NULL;
	const uint64_t id = number_of(c, 0, 0);
	for (struct meeting *m = all;; m++) {
		uint64_t free = 0;
		if (m->id == id || atomic_compare_exchange_strong(&m->id, &free, id) || free == id)
			return m;
	}
}

static void barrier(struct comm *comm)
{
	struct clique *c = comm->clique;
	struct meeting *m = meeting_of(c);
	if (m) {
		unsigned now = m->round;
		if (atomic_fetch_add(&m->waiting, 1) + 1 == comm->ranks) {
			m->waiting = 0;
			m->round++;
		}
		while (m->round == now)
			usleep(200);
		return;
	}
	pthread_mutex_lock(&lock);
	unsigned round = c->round;
	if (++c->waiting == comm->ranks)
		c->waiting = 0, c->round++, pthread_cond_broadcast(&came);
	while (c->round == round)
		pthread_cond_wait(&came, &lock);
	pthread_mutex_unlock(&lock);
}

/* NCCL takes the thread's device for the communicator's, there and in a resume. */
static bool is_current(struct comm *comm)
{
	int device;
	return cudaGetDevice(&device) == 0 && device == comm->device;
}

int ncclCommSuspend(struct comm *comm, int flags)
{
	const char *how = getenv("FAKE_NCCL");
	if (flags != 1 || !comm->memory || (how && strcmp(how, "fail") == 0))
		return INVALID_USAGE;
	if (how && strncmp(how, "hang", 4) == 0) {
		fputs("ncclCommSuspend hangs\n", stderr);
		while (access(how + 4, F_OK) != 0) /* the file that ends it */
			usleep(1000);
	}
	if (!is_current(comm))
		return INVALID_USAGE;
	comm->saved = malloc(KEPT);
	if (cudaDeviceSynchronize())
		return CUDA_ERROR;
	barrier(comm);
	if (cudaMemcpy(comm->saved, comm->memory, KEPT, 2) || cudaFree(comm->memory) || unshare(comm))
		return CUDA_ERROR;
	comm->memory = NULL;
	return OK;
}

int ncclCommResume(struct comm *comm)
{
	if (comm->memory)
		return INVALID_USAGE;
	if (!is_current(comm))
		return CUDA_ERROR;
	if (cudaMalloc((void **)&comm->memory, HELD) || cudaMemcpy(comm->memory, comm->saved, KEPT, 1) || share(comm))
		return CUDA_ERROR;
	free(comm->saved);
	barrier(comm);
	const char *how = getenv("FAKE_NCCL");
	return how && strcmp(how, "lose") == 0 ? CUDA_ERROR : OK;
}

int ncclCommMemStats(struct comm *comm, int stat, uint64_t *value)
{
	*value = stat == 1 ? !comm->memory : stat == 2 ? 0 : HELD;
	return OK;
}
#endif
