/* load is what happens when the library is loaded, and at the start of the Go runtime: the parts find their
 * settings. */
#define _GNU_SOURCE
#include "shim.h"
#include "_cgo_export.h"
#include "forward.h"
#include "symbols.h"

#include <stdlib.h>

/* A later call may come from a thread for which a library's constructor waits, with the loader's lock. */
static void ask_loader(void)
{
	handlers_find();
	helper_prepare();
}

HIDDEN void go_awake(void)
{
	helper_prepare();
	if (!region_config.control)
		return;
	control_load();
	tmsServe();
}

AT_LOAD static void leave_environment(void)
{
	Dl_info info;
	if (!getenv("TMS_NO_INHERIT"))
		return;
	const char *name = dladdr(__ehdr_start, &info) && info.dli_fname ? info.dli_fname : "libtms.so";
	region_leave_environment((const char *const[]){file_of(name), "libtms_reach.so", NULL});
}

/* Makes no system call that the loader does not make too: a sandbox may kill the process for others. */
__attribute__((constructor)) static void at_load(void)
{
	go_load();
	forward_at_first_call = ask_loader;
	region_load_environment();
	watch_load();
	leave_environment();
}
