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

static void awake(void)
{
	helper_prepare();
	if (!region_config.control)
		return;
	control_load();
	listener_end();
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

HIDDEN bool behind_cudart;

/* Stops at the first library, which is the program, unless that needs libtms.so; else at this library. */
AT_LOAD static int look_for_cudart(struct dl_phdr_info *info, size_t size, void *libraries)
{
	(void)size;
	const ElfW(Dyn) *entry = dynamic_of(info);
	struct symbols symbols;
	if ((*(int *)libraries)++ > 0) {
		behind_cudart |= is_library(file_of(info->dlpi_name), "libcudart");
		return entry == _DYNAMIC;
	}
	read_symbols(info->dlpi_addr, entry, &symbols);
	for (; entry && entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_NEEDED && equal(symbols.names + entry->d_un.d_val, "libtms.so"))
			return 0;
	return 1;
}

/* Makes no system call that the loader does not make too: a sandbox may kill the process for others. */
__attribute__((constructor)) static void at_load(void)
{
	go_load(awake);
	fork_notify(NULL, NULL, forward_in_child);
	forward_at_first_call = ask_loader;
	region_load_environment();
	watch_load();
	held_load();
	listener_load();
	leave_environment();
	dl_iterate_phdr(look_for_cudart, &(int){0});
}
