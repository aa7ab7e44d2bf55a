/* A directory that disk backups cannot use: nothing is lost, and the error names the setting that the directory came
 * from. Called as: unwritable DIRECTORY WORDS [set]; with "set" by tms_set_disk_backup_dir. */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc == 3 || argc == 4);
	if (argc == 4)
		tms_set_disk_backup_dir(argv[1]);
	tms_set_enable_disk_backup(true);
	void *segment = pausable(4 * MIB, "t", false);
	fill(segment, 4 * MIB, 7);
	EXPECT(tms_pause(NULL), 304);
	CHECK(strstr(tms_last_error(), argv[1]));
	CHECK(strstr(tms_last_error(), argv[2]));
	CHECK(filled(segment, 4 * MIB, 7));
	*strrchr(argv[1], '/') = 0; /* the directory of the file that was given as one */
	tms_set_disk_backup_dir(argv[1]);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(segment, 4 * MIB, 7));
	EXPECT(cudaFree(segment), 0);
	return 0;
}
