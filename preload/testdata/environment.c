/* Prints the settings of the thread that ran the constructors, and of fresh threads, a line for each. */
#include "host.h"

static void *show(void *unused)
{
	printf("%d %d %d %d %d %s %d %s\n", tms_get_interesting_region(), tms_get_enable_cpu_backup(),
	       tms_get_enable_disk_backup(), strcmp(tms_get_backup(), "peer") == 0, tms_get_enable_incremental_backup(),
	       tms_get_cpu_backup_backend(), tms_get_retain_cpu_backup(), tms_get_current_tag());
	return unused;
}

int main(void)
{
	show(NULL);
	on_a_thread(show, NULL);
	/* Another thread's settings do not change. */
	tms_set_interesting_region(!tms_get_interesting_region());
	tms_set_current_tag("mine");
	on_a_thread(show, NULL);
	return 0;
}
