/* load is what happens when the library is loaded, and at the start of the Go runtime: the parts find their
 * settings. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "region.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void wanted(void)
{
	region_report_environment(error_log);
}

static void awake(void)
{
	if (!region_config.control)
		return;
	control_load();
	tmsServe();
}

HIDDEN _Atomic bool cuda_watched;

AT_LOAD static void watch(bool recording)
{
	atomic_store(&cuda_watched, recording || account_on);
}

HIDDEN const struct trace_hooks trace_hooks = {watch};

HIDDEN const struct go_hooks go_hooks = {wanted, awake};

AT_LOAD static void leave_environment(void)
{
	Dl_info info;
	if (!getenv("TMS_NO_INHERIT"))
		return;
	const char *name = dladdr(__ehdr_start, &info) && info.dli_fname ? info.dli_fname : "libtms.so";
	const char *slash = strrchr(name, '/');
	region_leave_environment((const char *const[]){slash ? slash + 1 : name, "libtms_reach.so", NULL});
}

/* Makes no system call that the loader does not make too: a sandbox may kill the process for others. */
__attribute__((constructor)) static void at_load(void)
{
	go_load();
	region_load_environment();
	trace_load();
	account_load();
	watch(trace_is_on());
	leave_environment();
}
