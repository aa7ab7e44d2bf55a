/* A small libibverbs, with the versions of its functions, libmlx5, libcufile, libgdrapi and a part of
 * libcuda: they count what is registered. */
#include <stdint.h>
#include <stdlib.h>

static int registered;

int rdma_registered(void)
{
	return registered;
}

struct ibv_mr {
	void *context, *pd, *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};

static struct ibv_mr *made(void *address, size_t length)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	mr->addr = address, mr->length = length;
	registered++;
	return mr;
}

struct ibv_mr *reg_mr(void *pd, void *address, size_t length, int access)
{
	(void)pd, (void)access;
	return made(address, length);
}
__asm__(".symver reg_mr, ibv_reg_mr@@IBVERBS_1.1");

void *old_reg_mr(void *pd, void *address, size_t length, int access)
{
	(void)address, (void)length, (void)access;
	return pd;
}
__asm__(".symver old_reg_mr, ibv_reg_mr@IBVERBS_1.0");

struct ibv_mr *ibv_reg_mr_iova(void *pd, void *address, size_t length, uint64_t iova, int access)
{
	(void)pd, (void)iova, (void)access;
	return made(address, length);
}

struct ibv_mr *ibv_reg_mr_iova2(void *pd, void *address, size_t length, uint64_t iova, unsigned access)
{
	(void)pd, (void)iova, (void)access;
	return made(address, length);
}

struct ibv_mr *ibv_reg_dmabuf_mr(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)fd, (void)access;
	return made((void *)iova, length);
}

struct attributes {
	size_t length;
	int access;
	uint64_t mask, iova;
	void *address;
	int fd;
	uint64_t offset;
	void *hints;
};

struct ibv_mr *ibv_reg_mr_ex(void *pd, struct attributes *in)
{
	(void)pd;
	return made(in->address ? in->address : (void *)in->iova, in->length);
}

struct ibv_mr *mlx5dv_reg_dmabuf_mr(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access, int own)
{
	(void)pd, (void)offset, (void)fd, (void)access, (void)own;
	return made((void *)iova, length);
}

struct ibv_mr *mlx5dv_devx_umem_reg(void *context, void *address, size_t size, uint32_t access)
{
	(void)context, (void)access;
	return made(address, size);
}

struct umem {
	void *address;
	size_t size;
};

struct ibv_mr *mlx5dv_devx_umem_reg_ex(void *context, struct umem *in)
{
	(void)context;
	return made(in->address, in->size);
}

int mlx5dv_devx_umem_dereg(struct ibv_mr *umem)
{
	free(umem);
	registered--;
	return 0;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, void *pd, void *address, size_t length, int access)
{
	(void)pd, (void)access;
	if (flags & 1)
		mr->addr = address, mr->length = length;
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	registered--;
	return 0;
}

typedef struct {
	int err, cu_err;
} CUfileError_t;

CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags)
{
	(void)base, (void)flags;
	registered += length > 0;
	return (CUfileError_t){length ? 0 : 5022, 0};
}

CUfileError_t cuFileBufDeregister(const void *base)
{
	(void)base;
	registered--;
	return (CUfileError_t){0, 0};
}

int cudaMemcpy(void *, const void *, size_t, int);

long cuFileRead(void *file, void *base, size_t size, long file_offset, long offset)
{
	(void)file_offset;
	return cudaMemcpy((char *)base + offset, file, size, 1) == 0 ? (long)size : -1;
}

struct event {
	void *cookie;
	int status;
	size_t bytes;
};

CUfileError_t cuFileBatchIOSubmit(void *batch, unsigned count, void *parts, unsigned flags)
{
	(void)batch, (void)count, (void)parts, (void)flags;
	return (CUfileError_t){0, 0};
}

/* Returns the events that the test has ended. */
CUfileError_t cuFileBatchIOGetStatus(void *batch, unsigned least, unsigned *count, struct event *events, void *timeout)
{
	(void)batch, (void)events, (void)timeout;
	*count = least;
	return (CUfileError_t){0, 0};
}

void cuFileBatchIODestroy(void *batch)
{
	(void)batch;
}

int cuLogicalEndpointBindAddr(uint32_t endpoint, int device, uint64_t offset, void *address, uint64_t size,
			      unsigned long long flags)
{
	(void)endpoint, (void)device, (void)offset, (void)address, (void)size;
	return flags ? 1 : 0;
}

int cuLogicalEndpointUnbind(uint32_t endpoint, int device, uint64_t offset, uint64_t size)
{
	(void)endpoint, (void)device, (void)offset, (void)size;
	return 0;
}

int cuLogicalEndpointDestroy(uint32_t endpoint)
{
	(void)endpoint;
	return 0;
}

typedef struct {
	unsigned long h;
} gdr_mh_t;

int gdr_pin_buffer(void *gdr, unsigned long address, size_t size, uint64_t token, uint32_t space, gdr_mh_t *handle)
{
	(void)gdr, (void)size, (void)token, (void)space;
	handle->h = address ^ 1;
	registered++;
	return 0;
}

int gdr_unpin_buffer(void *gdr, gdr_mh_t handle)
{
	(void)gdr, (void)handle;
	registered--;
	return 0;
}
