/* mapping has the driver's functions for memory that a program maps itself, as the program looks them up. */
#ifndef MAPPING_H
#define MAPPING_H

#include "host.h"

int cuMemGetAllocationGranularity(size_t *, const struct prop *, int);
int cuMemGetAllocationPropertiesFromHandle(struct prop *, uint64_t);
int cuMulticastAddDevice(uint64_t, int);
int cuMulticastBindMem(uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long);
int cuMulticastUnbind(uint64_t, int, size_t, size_t);

#define MAPPING_FUNCTIONS(X)                                                                       \
	X(cuMemAddressFree)                                                                        \
	X(cuMemAddressReserve)                                                                     \
	X(cuMemCreate)                                                                             \
	X(cuMemExportToShareableHandle)                                                            \
	X(cuMemGetAllocationGranularity)                                                           \
	X(cuMemGetAllocationPropertiesFromHandle)                                                  \
	X(cuMemImportFromShareableHandle)                                                          \
	X(cuMemMap)                                                                                \
	X(cuMemRelease)                                                                            \
	X(cuMemRetainAllocationHandle)                                                             \
	X(cuMemSetAccess)                                                                          \
	X(cuMemUnmap)

static struct {
#define X(name) __typeof__(name) *name;
	MAPPING_FUNCTIONS(X)
#undef X
} cu;

static inline void fetch(void *(*find)(const char *))
{
	EXPECT(cudaFree(NULL), 0);
#define X(name) cu.name = (__typeof__(cu.name))find(#name);
	MAPPING_FUNCTIONS(X)
#undef X
}

/* c10/cuda/driver_api.cpp */
static inline void *by_version(const char *name)
{
	void *f = NULL;
	int status = -1;
	EXPECT(cudaGetDriverEntryPointByVersion(name, &f, 12030, 0, &status), 0);
	EXPECT(status, 0);
	CHECK(f);
	return f;
}

/* Begins a region with a tag, or ends it. */
static inline void enter(const char *tag, bool backup)
{
	tms_set_interesting_region(tag);
	tms_set_current_tag(tag);
	tms_set_enable_cpu_backup(backup);
}

static inline void leave(void)
{
	enter(NULL, false);
}

#endif
