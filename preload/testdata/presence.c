/* Once every feature has been used, the library leaves in the process the threads of its start, no descriptor, and
 * nothing of the caller's processors and scheduling. Called as: presence features|pinned DIRECTORY */
#include "host.h"

#define PATH_SIZE 300

/* Counts the descriptors, without the driver's and without descriptors that were there at first. */
static int held(void)
{
	static bool inherited[256], known;
	static const char *const never[] = {"eventpoll", "eventfd", "pipe:", "socket:", "timerfd", "cgroup"};
	int count = 0;
	for (int fd = 3; fd < 256; fd++) {
		const char *name = target_of(fd);
		bool open = *name && !is_device(fd);
		if (!known)
			inherited[fd] = open;
		if (!open || inherited[fd])
			continue;
		count++;
		for (size_t i = 0; i < sizeof never / sizeof *never; i++)
			if (strstr(name, never[i])) {
				fprintf(stderr, "%d is %s\n", fd, name);
				_exit(1);
			}
	}
	known = true;
	return count;
}

static void *free_later(void *address)
{
	usleep(50000);
	EXPECT(cudaFree(address), 0);
	return NULL;
}

static void use(const char *directory)
{
	void *host = pausable(40 * MIB, "host", true), *disk = NULL, *peer = NULL, *hog = NULL, *stream = NULL;
	fill(host, 40 * MIB, 1);
	tms_set_interesting_region(true);
	tms_set_disk_backup_dir(directory);
	tms_set_enable_disk_backup(true);
	EXPECT(cudaMalloc(&disk, 40 * MIB), 0);
	EXPECT(tms_set_backup("peer:1"), 0);
	EXPECT(cudaMalloc(&peer, 40 * MIB), 0);
	EXPECT(tms_set_backup("none"), 0);
	tms_set_interesting_region(false);
	fill(disk, 40 * MIB, 2);
	fill(peer, 40 * MIB, 3);
	EXPECT(tms_prepare(NULL, true), 0);
	for (int i = 0; i < 5; i++) {
		EXPECT(tms_prepare(NULL, false), 0);
		PAUSE_AND_RESUME(NULL);
	}
	CHECK(filled(host, 40 * MIB, 1) && filled(disk, 40 * MIB, 2) && filled(peer, 40 * MIB, 3));
	EXPECT(tms_pause(NULL), 0);
	EXPECT(cudaMalloc(&hog, free_bytes()), 0);
	EXPECT(tms_resume_within(NULL, 0.01), 2);
	pthread_t thread;
	start(&thread, free_later, hog);
	EXPECT(tms_resume_within(NULL, 20), 0);
	join(thread);
	EXPECT(cudaStreamCreate(&stream), 0);
	EXPECT(cudaFreeAsync(host, stream), 0);
	EXPECT(cudaFree(disk), 0);
	EXPECT(cudaFree(peer), 0);
	tms_pool *pool = NULL;
	void *block = NULL;
	EXPECT(tms_pool_create(&pool, "bfc", "memory_limit=8MiB", 0), 0);
	EXPECT(tms_pool_malloc(pool, &block, MIB, stream), 0);
	EXPECT(tms_pool_malloc(pool, &hog, 7 * MIB, stream), 2);
	EXPECT(tms_pool_destroy(pool), 0);
	EXPECT(tms_trim(), 0);
	CHECK(tms_stats_json(NULL, 0) > 0);
}

static void features(const char *directory)
{
	for (int fd = 0; fd < 3; fd++)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	held();
	cudaSetDevice(1);
	pausable(MIB, "first", false);
	cudaSetDevice(0);
	pausable(MIB, "first", false);
	EXPECT(held(), 0); /* the trace keeps none */
	int at_start = threads();
	use(directory);
	at_start += 5; /* the thread that keeps files, and the threads that it needs */
	EXPECT(threads(), at_start);
	EXPECT(held(), 0);
	for (int fd = 3; fd < 256; fd++) /* as a daemon does */
		if (!is_device(fd))
			close(fd);
	use(directory);
	EXPECT(threads(), at_start);
}

/* Reads the line of a thread's status that begins with a word. */
static void line_of(const char *thread, const char *word, char *line, size_t size)
{
	char path[PATH_SIZE];
	snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
	FILE *file = fopen(path, "r");
	CHECK(file);
	while (fgets(line, (int)size, file) && strncmp(line, word, strlen(word)) != 0)
		;
	fclose(file);
}

static void pinned(void)
{
	cpu_set_t all, one;
	EXPECT(sched_getaffinity(0, sizeof all, &all), 0);
	if (CPU_COUNT(&all) < 2)
		return; /* there is nothing to tell apart */
	CPU_ZERO(&one);
	for (int i = 0; CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &one);
	EXPECT(sched_setaffinity(0, sizeof one, &one), 0);
	EXPECT(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}), 0);
	pausable(MIB, "first", false);
	cpu_set_t now;
	EXPECT(sched_getaffinity(0, sizeof now, &now), 0);
	CHECK(CPU_EQUAL(&now, &one));
	EXPECT(sched_getscheduler(0), SCHED_BATCH);
	if (CPU_COUNT(&all) < 4) /* so few count as a program's own choice: the threads run on all processors */
		memset(&all, 0xff, sizeof all);
	EXPECT(sched_setaffinity(0, sizeof all, &all), 0);
	EXPECT(sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0}), 0);
	char mine[1024], other[1024], self[16];
	snprintf(self, sizeof self, "%d", getpid());
	line_of(self, "Cpus_allowed_list", mine, sizeof mine);
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *task; (task = readdir(tasks));) {
		if (task->d_name[0] == '.')
			continue;
		line_of(task->d_name, "Cpus_allowed_list", other, sizeof other);
		if (strcmp(mine, other) != 0) {
			fprintf(stderr, "thread %s: %s, not %s", task->d_name, other, mine);
			_exit(1);
		}
		EXPECT(sched_getscheduler(atoi(task->d_name)), SCHED_OTHER);
	}
	closedir(tasks);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	if (strcmp(argv[1], "pinned") == 0)
		pinned();
	else
		features(argv[2]);
	return 0;
}
