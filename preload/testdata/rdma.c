/* Memory that a network card, a file system or the processor reaches without CUDA is not paused. The first argument
 * says how the program finds the libraries' functions, the others are copies of the library. */
#include "host.h"

enum { SIZE = 4 * MIB, NOT_SUPPORTED = 801, PAUSED = 401 };

struct mr {
	void *context, *pd, *addr;
	size_t length;
};
typedef struct {
	int err, cu_err;
} file_error;
typedef struct {
	unsigned long h;
} pinned;

struct attributes { /* ibv_mr_init_attr */
	size_t length;
	int access;
	uint64_t mask, iova;
	void *address;
	int fd;
	uint64_t offset;
	void *hints;
};
struct umem { /* mlx5dv_devx_umem_in */
	void *address;
	size_t size;
	unsigned access;
	uint64_t pages, mask;
	int fd;
};
struct transfer { /* CUfileIOParams_t */
	int mode;
	void *base;
	long file_offset, offset;
	size_t size;
	void *file;
	int operation;
	void *cookie;
};
struct event { /* CUfileIOEvents_t */
	void *cookie;
	int status;
	size_t bytes;
};

#define RDMA(X)                                                                                            \
	X(ibv_reg_mr, "IBVERBS_1.1", struct mr *, (void *, void *, size_t, int))                           \
	X(ibv_reg_mr_iova, "IBVERBS_1.7", struct mr *, (void *, void *, size_t, uint64_t, int))            \
	X(ibv_reg_mr_iova2, "IBVERBS_1.8", struct mr *, (void *, void *, size_t, uint64_t, unsigned))      \
	X(ibv_reg_dmabuf_mr, "IBVERBS_1.12", struct mr *, (void *, uint64_t, size_t, uint64_t, int, int))  \
	X(ibv_reg_mr_ex, "IBVERBS_1.15", struct mr *, (void *, struct attributes *))                       \
	X(mlx5dv_reg_dmabuf_mr, NULL, struct mr *, (void *, uint64_t, size_t, uint64_t, int, int, int))    \
	X(mlx5dv_devx_umem_reg, NULL, struct mr *, (void *, void *, size_t, uint32_t))                     \
	X(mlx5dv_devx_umem_reg_ex, NULL, struct mr *, (void *, struct umem *))                             \
	X(mlx5dv_devx_umem_dereg, NULL, int, (struct mr *))                                                \
	X(cuFileBatchIOSubmit, NULL, file_error, (void *, unsigned, struct transfer *, unsigned))              \
	X(cuFileBatchIOGetStatus, NULL, file_error, (void *, unsigned, unsigned *, struct event *, void *)) \
	X(cuFileBatchIODestroy, NULL, void, (void *))                                                      \
	X(cuLogicalEndpointBindAddr, NULL, int,                                                            \
	  (uint32_t, int, uint64_t, void *, uint64_t, unsigned long long))                                 \
	X(cuLogicalEndpointUnbind, NULL, int, (uint32_t, int, uint64_t, uint64_t))                         \
	X(cuLogicalEndpointDestroy, NULL, int, (uint32_t))                                                 \
	X(ibv_rereg_mr, "IBVERBS_1.1", int, (struct mr *, int, void *, void *, size_t, int))               \
	X(ibv_dereg_mr, "IBVERBS_1.1", int, (struct mr *))                                                 \
	X(cuFileBufRegister, NULL, file_error, (const void *, size_t, int))                                \
	X(cuFileBufDeregister, NULL, file_error, (const void *))                                           \
	X(cuFileRead, NULL, long, (const void *, void *, size_t, long, long))                              \
	X(gdr_pin_buffer, NULL, int, (void *, unsigned long, size_t, uint64_t, uint32_t, pinned *))        \
	X(gdr_unpin_buffer, NULL, int, (void *, pinned))                                                   \
	X(rdma_registered, NULL, int, (void))

struct library {
#define X(name, version, returns, parameters) returns(*name) parameters;
	RDMA(X)
#undef X
};
#ifdef LINKED
#define X(name, version, returns, parameters) returns name parameters;
RDMA(X)
#undef X
#endif

static struct library find(const char *how, const char *path)
{
	struct library library;
	void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	bool versions = strcmp(how, "dlvsym") == 0;
	if (path && !handle)
		fprintf(stderr, "%s\n", dlerror());
#ifdef LINKED
#define X(name, version, returns, parameters) library.name = name;
#else
#define X(name, version, returns, parameters)                                                              \
	library.name = versions && version ? dlvsym(handle, #name, version ? version : "") : dlsym(handle, #name); \
	CHECK(library.name);
#endif
	RDMA(X)
#undef X
	if (versions) { /* the old function is left alone */
		void *(*old)(void *, void *, size_t, int) = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.0");
		Dl_info info;
		CHECK(old && dladdr(old, &info) && strcmp(info.dli_fname, path) == 0);
		CHECK(old(&library, NULL, 0, 0) == &library);
		CHECK(!dlvsym(handle, "ibv_reg_mr", "IBVERBS_9") && !dlvsym(handle, "ibv_nothing", "IBVERBS_1.1"));
	}
	return library;
}

static char *memory;
static void *ordinary;
static const struct library *used;

/* A pause of what is registered is refused; of the rest it is not. */
static void refused(const char *with, const char *call, const char *undone_by)
{
	char words[300];
	snprintf(words, sizeof words,
		 "is registered with %s by %s, and a registration does not survive a pause: call %s first", with, call,
		 undone_by);
	FAILS(tms_pause_gated(NULL, 10), NOT_SUPPORTED, words);
	EXPECT(tms_pause_gated("other", 10), 0);
	EXPECT(tms_resume(NULL), 0);
}

static void allowed(void)
{
	EXPECT(tms_pause_gated(NULL, 10), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(memory, SIZE, 1));
}

static void with_library(const struct library *l)
{
	const char *const names[] = {"ibv_reg_mr", "ibv_reg_mr_iova", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr"};
	const uint64_t at = (uintptr_t)memory;
	for (int i = 0; i < 4; i++) {
		struct mr *mr = i == 0	 ? l->ibv_reg_mr(NULL, memory + MIB, MIB, 0)
				: i == 1 ? l->ibv_reg_mr_iova(NULL, memory + MIB, MIB, 0, 0)
				: i == 2 ? l->ibv_reg_mr_iova2(NULL, memory + MIB, MIB, 0, 0)
					 : l->ibv_reg_dmabuf_mr(NULL, 0, MIB, at + MIB, 5, 0);
		CHECK(mr && mr->addr == memory + MIB && mr->length == MIB);
		refused("a network card", names[i], "ibv_dereg_mr");
		EXPECT(l->ibv_dereg_mr(mr), 0);
		allowed();
	}
	struct mr *mr = l->ibv_reg_mr(NULL, ordinary, MIB, 0);
	CHECK(mr);
	allowed();
	EXPECT(l->ibv_rereg_mr(mr, 1, NULL, memory, MIB, 0), 0);
	refused("a network card", "ibv_rereg_mr", "ibv_dereg_mr");
	EXPECT(l->ibv_rereg_mr(mr, 2, NULL, NULL, 0, 0), 0); /* another domain, the same memory */
	refused("a network card", "ibv_rereg_mr", "ibv_dereg_mr");
	EXPECT(l->ibv_rereg_mr(mr, 1, NULL, ordinary, MIB, 0), 0);
	allowed();
	EXPECT(l->ibv_dereg_mr(mr), 0);
	EXPECT(l->cuFileBufRegister(memory, SIZE, 0).err, 0);
	refused("GPUDirect Storage", "cuFileBufRegister", "cuFileBufDeregister");
	EXPECT(l->cuFileBufDeregister(memory).err, 0);
	EXPECT(l->cuFileBufRegister(memory, 0, 0).err, 5022); /* it has failed */
	pinned handle;
	EXPECT(l->gdr_pin_buffer(NULL, at, MIB, 0, 0, &handle), 0);
	refused("GDRCopy", "gdr_pin_buffer", "gdr_unpin_buffer");
	EXPECT(l->gdr_unpin_buffer(NULL, handle), 0);
	allowed();
	EXPECT(l->rdma_registered(), 0);
}

/* Registrations by a description and by one card's own library, and work that goes on after its call. */
static void in_other_ways(const struct library *l)
{
	const uint64_t at = (uintptr_t)memory;
	struct attributes by_address = {.length = MIB, .address = memory + MIB}, by_descriptor = {.length = MIB, .iova = at};
	struct mr *mr = l->ibv_reg_mr_ex(NULL, &by_address);
	refused("a network card", "ibv_reg_mr_ex", "ibv_dereg_mr");
	EXPECT(l->ibv_dereg_mr(mr), 0);
	mr = l->ibv_reg_mr_ex(NULL, &by_descriptor);
	refused("a network card", "ibv_reg_mr_ex", "ibv_dereg_mr");
	EXPECT(l->ibv_dereg_mr(mr), 0);
	mr = l->mlx5dv_reg_dmabuf_mr(NULL, 0, MIB, at, 5, 0, 0);
	refused("a network card", "mlx5dv_reg_dmabuf_mr", "ibv_dereg_mr");
	EXPECT(l->ibv_dereg_mr(mr), 0);
	mr = l->mlx5dv_devx_umem_reg(NULL, memory, MIB, 0);
	refused("a network card", "mlx5dv_devx_umem_reg", "mlx5dv_devx_umem_dereg");
	EXPECT(l->mlx5dv_devx_umem_dereg(mr), 0);
	mr = l->mlx5dv_devx_umem_reg_ex(NULL, &(struct umem){.address = memory, .size = MIB});
	refused("a network card", "mlx5dv_devx_umem_reg_ex", "mlx5dv_devx_umem_dereg");
	EXPECT(l->mlx5dv_devx_umem_dereg(mr), 0);
	allowed();

	void *batch = &used;
	struct transfer parts[3] = {{.base = ordinary, .size = 1}, {.base = memory, .size = 8}, {.base = memory, .size = 8}};
	struct event events[2] = {{.status = 0x10}, {.status = 2}}; /* complete, pending */
	unsigned count = 0;
	EXPECT(l->cuFileBatchIOSubmit(batch, 3, parts, 0).err, 0);
	EXPECT(l->cuFileBatchIOGetStatus(batch, 2, &count, events, NULL).err, 0);
	refused("GPUDirect Storage", "cuFileBatchIOSubmit", "cuFileBatchIOGetStatus");
	EXPECT(l->cuFileBatchIOGetStatus(batch, 1, &count, events, NULL).err, 0);
	allowed();
	EXPECT(l->cuFileBatchIOSubmit(batch, 3, parts, 0).err, 0);
	refused("GPUDirect Storage", "cuFileBatchIOSubmit", "cuFileBatchIOGetStatus");
	l->cuFileBatchIODestroy(batch);
	allowed();

	EXPECT(l->cuLogicalEndpointBindAddr(7, 0, 0, memory, MIB, 1), 1);
	allowed();
	for (int destroys = 0; destroys < 2; destroys++) {
		for (uint64_t i = 0; i < 2; i++)
			EXPECT(l->cuLogicalEndpointBindAddr(7, 0, i * MIB, memory + i * MIB, MIB, 0), 0);
		EXPECT(l->cuLogicalEndpointUnbind(7, 0, 0, MIB), 0);
		refused("a logical endpoint", "cuLogicalEndpointBindAddr", "cuLogicalEndpointUnbind");
		EXPECT(destroys ? l->cuLogicalEndpointDestroy(7) : l->cuLogicalEndpointUnbind(7, 0, MIB, MIB), 0);
		allowed();
	}
}

static struct mr *late;
static long copied;
static _Atomic bool begins, done;

static void *while_paused(void *unused)
{
	static const char byte = 1;
	begins = true;
	late = used->ibv_reg_mr(NULL, memory, MIB, 0);
	copied = used->cuFileRead(&byte, memory, 1, 0, 0);
	done = true;
	return unused;
}

/* A registration of paused memory waits for the resume. */
static void waits(const struct library *l)
{
	pthread_t thread;
	used = l;
	EXPECT(tms_pause_gated(NULL, 10), 0);
	start(&thread, while_paused, NULL);
	AWAIT(begins);
	usleep(20000);
	CHECK(!done);
	EXPECT(l->rdma_registered(), 0);
	EXPECT(tms_resume(NULL), 0);
	join(thread);
	CHECK(late);
	EXPECT(copied, 1);
	refused("a network card", "ibv_reg_mr", "ibv_dereg_mr");
	EXPECT(l->ibv_dereg_mr(late), 0);
	fill(memory, SIZE, 1);
	allowed();
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	memory = kept_memory(SIZE, "weights", 1);
	pausable(MIB, "other", true);
	ordinary = malloc(MIB);
	struct library libraries[2];
	int count = 0;
	do
		libraries[count] = find(argv[1], argv[2 + count]);
	while (++count < 2 && 2 + count < argc);
	for (int i = 0; i < count; i++) {
		with_library(&libraries[i]);
		in_other_ways(&libraries[i]);
	}
	if (count == 2) { /* each has its own */
		struct mr *mr = libraries[0].ibv_reg_mr(NULL, memory, MIB, 0);
		EXPECT(libraries[0].rdma_registered(), 1);
		EXPECT(libraries[1].rdma_registered(), 0);
		EXPECT(libraries[0].ibv_dereg_mr(mr), 0);
	}
	waits(&libraries[0]);
	return 0;
}
