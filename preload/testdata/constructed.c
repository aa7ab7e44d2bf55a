/* Prints the settings of the thread that ran the constructors, and those of a fresh one. */
#include "host.h"

static void *show(void *unused)
{
	printf("%d %d %s\n", tms_get_interesting_region(), tms_get_enable_cpu_backup(), tms_get_cpu_backup_backend());
	return unused;
}

int main(void)
{
	show(NULL);
	pthread_t thread;
	EXPECT(pthread_create(&thread, NULL, show, NULL), 0);
	EXPECT(pthread_join(thread, NULL), 0);
	return 0;
}
