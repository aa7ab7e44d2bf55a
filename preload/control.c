/* control is the core of the tms_* functions that set and ask; none of the setters wakes Go. */
#define _GNU_SOURCE
#include "seam.h"
#include "_cgo_export.h"
#include "region.h"
#include "tms.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef TMS_VERSION
#define TMS_VERSION "0.1.0"
#endif

EXPORT const char *tms_version(void)
{
	return TMS_VERSION;
}

EXPORT void tms_set_interesting_region(bool on)
{
	region_report_environment(error_log);
	region_set_active(on);
}

EXPORT bool tms_get_interesting_region(void)
{
	return region_wanted();
}

EXPORT void tms_set_excluded(bool on)
{
	region_set_excluded(on);
}

EXPORT bool tms_get_excluded(void)
{
	return region_get().excluded;
}

EXPORT void tms_set_current_tag(const char *tag)
{
	if (!region_set_tag(tag))
		error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to keep the tag's name; the tag is as before");
}

EXPORT const char *tms_get_current_tag(void)
{
	return region_get().tag;
}

EXPORT void tms_set_enable_cpu_backup(bool on)
{
	region_set_cpu_backup(on);
}

EXPORT bool tms_get_enable_cpu_backup(void)
{
	return region_get().cpu_backup;
}

EXPORT void tms_set_enable_disk_backup(bool on)
{
	region_set_disk_backup(on);
}

EXPORT bool tms_get_enable_disk_backup(void)
{
	return region_get().disk_backup;
}

EXPORT void tms_set_enable_incremental_backup(bool on)
{
	region_set_incremental(on);
}

EXPORT bool tms_get_enable_incremental_backup(void)
{
	return region_get().incremental;
}

EXPORT void tms_set_enable_peer_backup(bool on, int device)
{
	if (!region_set_peer(on, device))
		error_fail(ERROR_INVALID_VALUE, "%d is no device ordinal; -1 stands for any device", device);
}

EXPORT bool tms_get_enable_peer_backup(int *device)
{
	unsigned char peer = region_get().peer;
	if (device && peer)
		*device = peer - 2;
	return peer != 0;
}

EXPORT void tms_set_cpu_backup_backend(const char *name)
{
	enum region_backend backend;
	if (region_parse_backend(name, &backend))
		region_set_backend(backend);
	else
		error_fail(ERROR_INVALID_VALUE, "cpu backup backend \"%.100s\" is unknown; use pinned or mmap",
			   name ? name : "NULL");
}

EXPORT const char *tms_get_cpu_backup_backend(void)
{
	return region_backend_name(region_get().backend);
}

EXPORT void tms_set_disk_backup_dir(const char *path)
{
	const char *kept = path && *path ? region_intern(path) : NULL;
	if (path && *path && !kept)
		error_fail(ERROR_MEMORY_ALLOCATION, "no host memory to keep the path; the directory is as before");
	else
		atomic_store(&region_process.disk_backup_dir, kept);
}

EXPORT void set_memory_margin_bytes(uint64_t bytes)
{
	atomic_store(&region_process.margin_bytes, bytes);
}

EXPORT void tms_set_retain_cpu_backup(bool on)
{
	atomic_store(&region_process.retain_cpu_backup, on);
}

EXPORT bool tms_get_retain_cpu_backup(void)
{
	return atomic_load(&region_process.retain_cpu_backup);
}

EXPORT uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size)
{
	if (!arena_contains(address) && !atomic_load(&mapping_tracked)) {
		error_fail(ERROR_INVALID_VALUE, "%p is not in a segment of this library", (const void *)address);
		return NULL;
	}
	struct visit saved;
	if (go_enter(&saved) != SUCCESS)
		return NULL;
	uint8_t *copy = (uint8_t *)tmsBackupPointer((void *)address, size);
	go_leave(&saved);
	return copy;
}

EXPORT size_t tms_stats_json(char *buffer, size_t capacity)
{
	struct visit saved;
	if (go_now() == GO_AWAKE && go_enter(&saved) == SUCCESS) {
		char *text = tmsStats((char *)TMS_VERSION);
		go_leave(&saved);
		int length = snprintf(buffer, buffer ? capacity : 0, "%s", text ? text : "{}");
		free(text);
		return (size_t)length;
	}
	int length = snprintf(buffer, buffer ? capacity : 0,
			      "{\"version\":\"" TMS_VERSION "\",\"started\":false,\"devices\":[]}");
	return (size_t)length;
}
