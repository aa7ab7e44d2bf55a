/* Prints what the environment sets, in one line. A thread made later has the same settings. */
#include "host.h"

static void *show(void *unused)
{
	(void)unused;
	printf("%d %d %d %d %d %s %d %s\n", tms_get_interesting_region(), tms_get_enable_cpu_backup(),
	       tms_get_enable_disk_backup(), tms_get_enable_peer_backup(NULL), tms_get_enable_incremental_backup(),
	       tms_get_cpu_backup_backend(), tms_get_retain_cpu_backup(), tms_get_current_tag());
	return NULL;
}

int main(void)
{
	pthread_t thread;
	EXPECT(pthread_create(&thread, NULL, show, NULL), 0);
	EXPECT(pthread_join(thread, NULL), 0);
	/* Another thread's settings do not change. */
	tms_set_interesting_region(!tms_get_interesting_region());
	tms_set_current_tag("mine");
	EXPECT(pthread_create(&thread, NULL, show, NULL), 0);
	EXPECT(pthread_join(thread, NULL), 0);
	return 0;
}
