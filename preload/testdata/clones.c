/* Children that no fork handler knows of (_Fork, clone), and forks while other threads set callbacks: in them calls of
 * the library fail at once, and leave the parent's memory alone. Called as: clones raw|refused|callback CHILDREN */
#include "host.h"

#include <malloc.h>

static _Atomic bool stop;

static void on_progress(int device, const char *operation, uint64_t done, uint64_t total, void *user)
{
	(void)device, (void)operation, (void)done, (void)total, (void)user;
}

static void *set_callbacks(void *unused)
{
	while (!atomic_load(&stop)) {
		tms_set_progress_callback(on_progress, &stop);
		tms_set_progress_callback(NULL, NULL);
	}
	return unused;
}

static void *pause_and_resume(void *unused)
{
	while (!atomic_load(&stop)) {
		tms_pause("busy");
		tms_resume("busy");
	}
	return unused;
}

/* Like fork, but no handler is called. */
static pid_t raw_fork(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static void in_child(void *ours)
{
	void *pointer = NULL;
	alarm(30);
	EXPECT(tms_pause(NULL), 3);
	CHECK(strstr(tms_last_error(), "fork"));
	EXPECT(tms_resume(NULL), 3);
	EXPECT(cudaFree(ours), 3);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 100), 3);
	CHECK(!tms_torch_malloc(10, 0, NULL));
	CHECK(tms_stats_json(NULL, 0) > 0);
	tms_set_progress_callback(on_progress, NULL);
	tms_set_progress_callback(NULL, NULL);
	_exit(0);
}

/* Behaves like a kernel that cannot wipe pages in children. */
static void refuse_to_wipe(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_WIPEONFORK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter_calls(filter, sizeof filter / sizeof *filter);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	mallopt(M_ARENA_MAX, 1); /* malloc's lock is held at many of the forks */
	bool raw = strcmp(argv[1], "callback") != 0;
	if (strcmp(argv[1], "refused") == 0)
		refuse_to_wipe();
	void *ours = pausable(2 * MIB, "kept", true), *busy = pausable(2 * MIB, "busy", true);
	fill(ours, 2 * MIB, 7);
	pthread_t threads[2];
	start(&threads[0], set_callbacks, NULL);
	start(&threads[1], raw ? pause_and_resume : set_callbacks, NULL);
	for (int i = 0; i < atoi(argv[2]); i++) {
		pid_t child = raw ? raw_fork() : fork();
		CHECK(child >= 0);
		if (child == 0)
			in_child(ours);
		EXPECT(code_of(child), 0);
	}
	atomic_store(&stop, true);
	join_all(threads, 2);
	CHECK(filled(ours, 2 * MIB, 7));
	EXPECT(tms_pause(NULL), 0);
	EXPECT(tms_resume(NULL), 0);
	CHECK(filled(ours, 2 * MIB, 7));
	EXPECT(cudaFree(busy), 0);
	EXPECT(cudaFree(ours), 0);
	return 0;
}
