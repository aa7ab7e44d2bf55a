/* Children forked in every state of the parent try every entry point: each call returns, and never hangs. Called as:
 * forks unused|used|pausing|starting CHILDREN AT-ONCE, or forks raw|refused CHILDREN 0 */
#include "host.h"

#include <malloc.h>

static _Atomic bool stop;

/* Calls every entry point once. Where the parent had used the library, CUDA does not work in the child, nor does the
 * library; otherwise all of it works. */
static void every_call(void *ours, bool usable)
{
	void *pointer = NULL, *graph = NULL, *stream = NULL;
	char handle[64], attributes[128];
	size_t pitch = 0;
	alarm(120);
	int code = tms_pause(NULL);
	CHECK(code == (usable ? 0 : 3));
	CHECK(tms_resume(NULL) == code);
	tms_set_interesting_region(true);
	tms_set_current_tag("child");
	tms_set_enable_cpu_backup(true);
	code = cudaMalloc(&pointer, 100);
	CHECK(usable ? code == 0 : code == 3 && strstr(tms_last_error(), "fork"));
	if (usable) {
		fill(pointer, 100, 1);
		CHECK(tms_pause(NULL) == 0 && tms_resume(NULL) == 0 && filled(pointer, 100, 1));
		CHECK(cudaFree(pointer) == 0);
	}
	void *(*find)(void *, const char *) = dlsym;
#define CALL(name, type, ...)                                                                      \
	do {                                                                                       \
		int (*f) type = (int (*) type)find(RTLD_DEFAULT, name);                            \
		CHECK(f);                                                                          \
		int answer = f(__VA_ARGS__);                                                       \
		CHECK(usable || answer != 0);                                                      \
	} while (0)
	CALL("cudaMallocAsync", (void **, size_t, void *), &pointer, 100, stream);
	CALL("cudaMallocPitch", (void **, size_t *, size_t, size_t), &pointer, &pitch, 100, 100);
	CALL("cudaPointerGetAttributes", (void *, const void *), attributes, pointer);
	CALL("cudaStreamBeginCapture", (void *, int), stream, 0);
	CALL("cudaStreamEndCapture", (void *, void **), stream, &graph);
	if (ours) {
		CHECK(cudaFree(ours) == 3);
		CALL("cudaFreeAsync", (void *, void *), ours, stream);
		CALL("cudaIpcGetMemHandle", (void *, void *), handle, ours);
		CHECK(!tms_get_cpu_backup_pointer(ours, 1));
		tms_torch_free(ours, 1, 0, NULL);
	}
	CHECK(!tms_torch_malloc(10, 0, NULL) == !usable);
	tms_set_interesting_region(false);
	CHECK(cudaMalloc(&pointer, 100) == (usable ? 0 : 3)); /* CUDA's own answer */
	CHECK(tms_stats_json(NULL, 0) > 0);
	CHECK(tms_last_error() && tms_version() && tms_get_current_tag());
	CALL("cudaDeviceReset", (void), );
	_exit(0);
}

static void *pause_and_resume(void *unused)
{
	while (!atomic_load(&stop)) {
		PAUSE_AND_RESUME("busy");
	}
	return unused;
}

static void reap(int count)
{
	for (int i = 0; i < count; i++) {
		int status = -1;
		CHECK(wait(&status) > 0);
		EXPECT(status, 0);
	}
}

static void fork_children(int children, int at_once, void *ours, bool usable)
{
	for (int made = 0; made < children; made += at_once) {
		for (int i = 0; i < at_once; i++) {
			pid_t pid = fork();
			CHECK(pid >= 0);
			if (pid == 0)
				every_call(ours, usable);
		}
		reap(at_once);
	}
}

static void *use_malloc(void *unused)
{
	while (!atomic_load(&stop)) {
		void *volatile memory = malloc(64);
		free(memory);
	}
	return unused;
}

/* Like fork, but no handler is called. */
static pid_t raw_fork(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static void few_calls(void *ours)
{
	void *pointer = NULL;
	alarm(120);
	FAILS(tms_pause(NULL), 3, "fork");
	EXPECT(tms_resume(NULL), 3);
	EXPECT(cudaFree(ours), 3);
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 100), 3);
	CHECK(!tms_torch_malloc(10, 0, NULL));
	CHECK(tms_stats_json(NULL, 0) > 0);
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

/* Children that no fork handler knows of (_Fork, clone): in them calls of the library fail at once, and leave the
 * parent's memory alone. */
static void unheard_of(const char *state, int children)
{
	mallopt(M_ARENA_MAX, 1); /* malloc's lock is held at many of the forks */
	if (strcmp(state, "refused") == 0)
		refuse_to_wipe();
	void *ours = pausable(2 * MIB, "kept", true), *busy = pausable(2 * MIB, "busy", true);
	fill(ours, 2 * MIB, 7);
	pthread_t threads[2];
	start(&threads[0], use_malloc, NULL);
	start(&threads[1], pause_and_resume, NULL);
	for (int i = 0; i < children; i++) {
		pid_t child = raw_fork();
		CHECK(child >= 0);
		if (child == 0)
			few_calls(ours);
		EXPECT(code_of(child), 0);
	}
	atomic_store(&stop, true);
	join_all(threads, 2);
	CHECK(filled(ours, 2 * MIB, 7));
	PAUSE_AND_RESUME(NULL);
	CHECK(filled(ours, 2 * MIB, 7));
	EXPECT(cudaFree(busy), 0);
	EXPECT(cudaFree(ours), 0);
}

static void *first_use(void *unused)
{
	void *pointer = NULL;
	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&pointer, 100), 0);
	return unused;
}

/* Each start has a parent of its own, which forks within its microseconds. The state that a child finds depends on
 * the moment, but its calls return in each. */
static void fork_while_starting(int index)
{
	pid_t parent = fork();
	CHECK(parent >= 0);
	if (parent != 0)
		return;
	/* The driver's library is loaded before: a child forked in the middle of another thread's dlopen finds it half
	 * relocated, which cannot be helped. */
	simulator("cudasim_stat");
	pthread_t thread;
	start(&thread, first_use, NULL);
	for (int i = 0; i < 4; i++) {
		usleep((unsigned)((index * 37 + i * 91) % 400));
		pid_t pid = fork();
		if (pid == 0) {
			alarm(120);
			void *pointer = NULL;
			tms_set_interesting_region(true);
			int code = cudaMalloc(&pointer, 100);
			CHECK(code == 0 || code == 3);
			code = tms_pause(NULL);
			CHECK(code == 0 || code == 3);
			tms_stats_json(NULL, 0);
			_exit(0);
		}
	}
	reap(4);
	join(thread);
	_exit(0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int children = atoi(argv[2]), at_once = atoi(argv[3]);
	if (at_once == 0) {
		unheard_of(argv[1], children);
	} else if (strcmp(argv[1], "unused") == 0) {
		fork_children(children, at_once, NULL, true);
	} else if (strcmp(argv[1], "starting") == 0) {
		for (int made = 0; made < children; made += at_once) {
			for (int i = 0; i < at_once; i++)
				fork_while_starting(made + i);
			reap(at_once);
		}
	} else {
		void *ours = pausable(MIB, "parent", true), *busy = pausable(16 * MIB, "busy", true);
		pthread_t thread;
		bool pausing = strcmp(argv[1], "pausing") == 0;
		if (pausing)
			start(&thread, pause_and_resume, NULL);
		fork_children(children, at_once, ours, false);
		atomic_store(&stop, true);
		if (pausing)
			join(thread);
		EXPECT(cudaFree(busy), 0);
		EXPECT(cudaFree(ours), 0);
	}
	return 0;
}
