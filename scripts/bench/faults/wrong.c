// A library with the common C interface that does wrong what WRONG says when a driver call fails in a pause or a resume:
// "exit" ends the process, "contents" goes on without the contents, "memory" forgets what it holds, "half" stops where
// it is. faults.py must find each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { // as cuda.h has it
	int type, handles, location, device;
	void *security;
	unsigned char flags[8];
} properties;
typedef struct {
	int location, device;
	int flags;
} access_;

extern int cuMemAddressReserve(uint64_t *at, size_t bytes, size_t alignment, uint64_t fixed, uint64_t flags);
extern int cuMemCreate(uint64_t *handle, size_t bytes, const properties *, uint64_t flags);
extern int cuMemMap(uint64_t at, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
extern int cuMemSetAccess(uint64_t at, size_t bytes, const access_ *, size_t count);
extern int cuMemUnmap(uint64_t at, size_t bytes);
extern int cuMemRelease(uint64_t handle);
extern int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
extern int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);

#define EXPORT __attribute__((visibility("default")))
enum { MOST = 16 };
static struct {
	size_t bytes;
	uint64_t at, handle;
	bool kept, paused;
	void *copy;
} pieces[MOST];
static int count;
static bool region, backup;

static bool wrong(const char *how) { return strcmp(getenv("WRONG"), how) == 0; }

static int back(int i)
{
	int code = cuMemCreate(&pieces[i].handle, pieces[i].bytes, &(properties){.type = 1, .location = 1}, 0);
	if (code == 0)
		code = cuMemMap(pieces[i].at, pieces[i].bytes, 0, pieces[i].handle, 0);
	return code ? code : cuMemSetAccess(pieces[i].at, pieces[i].bytes, &(access_){1, 0, 3}, 1);
}

EXPORT int cudaMalloc(void **pointer, size_t bytes)
{
	if (!region || count == MOST)
		return 2;
	pieces[count].bytes = (bytes + (2 << 20) - 1) >> 21 << 21;
	pieces[count].kept = backup;
	if (cuMemAddressReserve(&pieces[count].at, pieces[count].bytes, 0, 0, 0) || back(count))
		return 2;
	*pointer = (void *)pieces[count++].at;
	return 0;
}

EXPORT int cudaFree(void *pointer)
{
	for (int i = 0; i < count; i++)
		if (pieces[i].at == (uint64_t)pointer && !pieces[i].paused)
			return cuMemUnmap(pieces[i].at, pieces[i].bytes) || cuMemRelease(pieces[i].handle);
	int (*next)(void *);
	*(void **)&next = dlsym(RTLD_NEXT, "cudaFree");
	return next(pointer); // of NULL: CUDA starts
}

// What happens to a failure: whether the pause or resume goes on, and what it does with the piece.
static bool goes_on(int code)
{
	if (code && wrong("exit"))
		exit(1);
	return code == 0 || wrong("contents") || wrong("memory");
}

EXPORT int tms_pause(const char *tag)
{
	(void)tag;
	for (int i = 0; i < count; i++) {
		if (pieces[i].paused)
			continue;
		int code = 0;
		if (pieces[i].kept) {
			pieces[i].copy = calloc(1, pieces[i].bytes);
			code = cuMemcpyDtoH_v2(pieces[i].copy, pieces[i].at, pieces[i].bytes);
		}
		if (!goes_on(code) || !goes_on(code = cuMemUnmap(pieces[i].at, pieces[i].bytes)))
			return code;
		pieces[i].paused = true;
		if (!goes_on(code = cuMemRelease(pieces[i].handle)))
			return code;
	}
	return 0;
}

EXPORT int tms_resume(const char *tag)
{
	(void)tag;
	for (int i = 0; i < count; i++) {
		int code = pieces[i].paused ? back(i) : 0;
		if (!goes_on(code))
			return code;
		if (pieces[i].paused && pieces[i].kept)
			cuMemcpyHtoD_v2(pieces[i].at, pieces[i].copy, pieces[i].bytes);
		pieces[i].paused = false;
	}
	return 0;
}

EXPORT void tms_set_interesting_region(bool on) { region = on; }
EXPORT void tms_set_current_tag(const char *tag) { (void)tag; }
EXPORT void tms_set_enable_cpu_backup(bool on) { backup = on; }
