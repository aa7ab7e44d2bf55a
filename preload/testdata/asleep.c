/* Loaded and unused, configured, and in and out of regions: one thread, no signal handler changed. The first allocation
 * in a region starts Go; its threads block every signal that a host may wait for. */
#include "host.h"

static struct sigaction before[NSIG];

static void remember(void)
{
	for (int s = 1; s < NSIG; s++)
		sigaction(s, NULL, &before[s]);
}

static int changed(int except)
{
	for (int s = 1; s < NSIG; s++) {
		struct sigaction now;
		if (sigaction(s, NULL, &now) == 0 && s != except && s != SIGSEGV && s != SIGBUS &&
		    s != SIGFPE && now.sa_sigaction != before[s].sa_sigaction)
			return s;
	}
	return 0;
}

static unsigned long long blocked(const char *task)
{
	char path[300], line[300];
	snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
	FILE *status = fopen(path, "r");
	unsigned long long mask = 0;
	if (!status)
		return ~0ull;
	while (fgets(line, sizeof line, status))
		sscanf(line, "SigBlk: %llx", &mask);
	fclose(status);
	return mask;
}

int main(void)
{
	remember();
	EXPECT(threads(), 1);
	void *pointer = NULL;
	EXPECT(cudaMalloc(&pointer, 1000), 0);
	EXPECT(cudaFree(pointer), 0);
	tms_set_interesting_region(true);
	tms_set_current_tag("weights");
	tms_set_enable_cpu_backup(true);
	tms_set_retain_cpu_backup(true);
	tms_set_disk_backup_dir("/tmp");
	set_memory_margin_bytes(1);
	EXPECT(tms_get_interesting_region(), true);
	EXPECT(strcmp(tms_get_current_tag(), "weights"), 0);
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume("weights"), 0);
	CHECK(tms_stats_json(NULL, 0) > 0);
	EXPECT(threads(), 1);
	EXPECT(changed(0), 0);
	struct sigaction fault;
	EXPECT(sigaction(SIGSEGV, NULL, &fault), 0);
	CHECK(fault.sa_handler == SIG_DFL);

	sigset_t child, old;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	EXPECT(pthread_sigmask(SIG_BLOCK, &child, &old), 0);
	EXPECT(cudaMalloc(&pointer, 1000), 0);
	CHECK(threads() > 1);
	EXPECT(changed(0), 0);

	/* Our own mask is as it was: SIGCHLD and nothing else. Go's threads block all that can be blocked. */
	sigset_t now;
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &now), 0);
	for (int s = 1; s < 32; s++)
		EXPECT(sigismember(&now, s), s == SIGCHLD || sigismember(&old, s));
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
			continue;
		unsigned long long mask = blocked(entry->d_name);
		static const int waited_for[] = {SIGHUP, SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2,
						 SIGALRM, SIGPROF, SIGWINCH, SIGURG, SIGPIPE};
		for (size_t i = 0; i < sizeof waited_for / sizeof *waited_for; i++)
			CHECK(mask >> (waited_for[i] - 1) & 1);
	}
	closedir(tasks);

	/* A child's end reaches sigtimedwait, whatever else runs in this process. */
	for (int i = 0; i < 50; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		struct timespec patience = {5, 0};
		EXPECT(sigtimedwait(&child, NULL, &patience), SIGCHLD);
		EXPECT(waitpid(pid, NULL, 0), pid);
	}
	EXPECT(cudaFree(pointer), 0);
	return 0;
}
