/* token exports memory that the program made itself (cuMemExportToShareableHandle), as PyTorch's symmetric memory does,
 * and imports it. Its descriptors are sealed files that say which process to ask for what, as ipc.c's handles of 64
 * bytes do. They hold no memory and mean nothing to the driver. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'t', 'm', 's', '-', 'm', 'e', 'm', '1'};
enum { POSIX_FD = 1, SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8
#endif

/* Returns -1 with errno. Kernels before 6.3 do not know the last flag; later ones may require it. */
static int file(const struct ipc_handle *token)
{
	static const char name[] = "tms-memory";
	int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (made < 0 && errno == EINVAL)
		made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (made < 0)
		return -1;
	if (write(made, token, sizeof *token) == sizeof *token && fcntl(made, F_ADD_SEALS, SEALS) == 0)
		return made;
	int error = errno;
	close(made);
	errno = error;
	return -1;
}

HIDDEN int token_export(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
	if (type != POSIX_FD || flags || !shareable || !region_config.exportable ||
	    !atomic_load_explicit(&handles_tracked, memory_order_acquire))
		return NOT_OURS;
	struct ipc_handle token = {.pid = 0};
	memcpy(token.magic, magic, sizeof magic);
	int code = IN_GO(tmsShareHandle(handle, &token));
	if (code == SUCCESS && token.pid == (uint32_t)getpid())
		code = operation_serve(); /* the process that imports it asks there */
	if (code != SUCCESS)
		return code;
	int made = file(&token);
	if (made < 0)
		return error_fail(ERROR_OPERATING_SYSTEM, "no descriptor can be made for the memory to be shared by: %s",
				  strerror(errno));
	*(int *)shareable = made;
	return SUCCESS;
}

/* Other descriptors cost one or two system calls. */
static bool is_token(int descriptor, struct ipc_handle *token)
{
	struct stat about;
	int seals = fcntl(descriptor, F_GET_SEALS);
	return seals >= 0 && (seals & SEALS) == SEALS && fstat(descriptor, &about) == 0 &&
	       about.st_size == sizeof *token && pread(descriptor, token, sizeof *token, 0) == sizeof *token &&
	       memcmp(token->magic, magic, sizeof magic) == 0;
}

static int import(uint64_t *handle, const struct ipc_handle *token)
{
	uint64_t number = 0;
	if (!handle)
		return error_fail(ERROR_INVALID_VALUE, "the handle to fill in is NULL");
	int code = operation_import(OPERATION_IMPORT_HANDLE, token, current_device_of_driver, &number);
	if (code == SUCCESS) {
		handles_track();
		recording_changed();
		*handle = number;
	}
	return code;
}

EXPORT int cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type)
{
	struct ipc_handle token;
	if (type == POSIX_FD && is_token((int)(intptr_t)shareable, &token))
		return import(handle, &token);
	return handles_import(handle, shareable, type);
}
