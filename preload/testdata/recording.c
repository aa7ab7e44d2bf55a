/* Cases that a trace must survive. Called as: recording CASE FILE [COUNT [KIB]], with TMS_TRACE=FILE unless a case says
 * otherwise. */
#include "host.h"

static const char *path; /* FILE, COUNT and KIB */
static int count;
static rlim_t limit;
static void *kept[64];

/* Makes a number of allocations, half of them in a region; the last few stay. */
static void churn(int times)
{
	tms_set_current_tag("churned");
	for (int i = 0; i < times; i++) {
		EXPECT(cudaFree(kept[i % 64]), 0);
		tms_set_interesting_region(i % 2 == 0);
		EXPECT(cudaMalloc(&kept[i % 64], 1000 + (size_t)i % 7), 0);
	}
	tms_set_interesting_region(false);
}

static void churn_all(void)
{
	churn(count);
}

/* A pause and a resume between two lots of allocations, and an end that nothing can prevent. */
static void killed(void)
{
	void *block;
	churn(count);
	block = pausable(4 * MIB, "weights", true);
	EXPECT(cudaMemset(block, 7, 4 * MIB), 0);
	PAUSE_AND_RESUME("weights");
	void *last = NULL;
	EXPECT(cudaMalloc(&last, 12345), 0);
	printf("%p\n", last);
	fflush(stdout);
	raise(SIGKILL);
}

/* The file loses its blocks under the mapping. */
static void cut(void)
{
	churn(100);
	EXPECT(truncate(path, 0), 0);
	churn(count);
}

/* No file can be longer than the given KiB; the simulator's own files exist already. */
static void full(void)
{
	churn(100);
	EXPECT(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit}), 0);
	churn(count);
}

static void removed(void)
{
	churn(100);
	EXPECT(unlink(path), 0);
	churn(count);
}

/* A fault of the host's own stays the host's, also while there is a trace. */
static void faulting(void)
{
	char name[4096];
	churn(100);
	snprintf(name, sizeof name, "%s.own", path);
	int file = open(name, O_RDWR | O_CREAT, 0600);
	CHECK(file >= 0 && ftruncate(file, 1) == 0);
	volatile char *mine = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	struct sigaction asked;
	EXPECT(sigaction(SIGBUS, NULL, &asked), 0);
	CHECK(asked.sa_handler == SIG_DFL); /* the host sees its own handler, too */
	mine[4096] = 1;
}

static void allocate_and_free(int times)
{
	for (int i = 0; i < times; i++) {
		void *block = NULL;
		cudaMalloc(&block, 1000);
		cudaFree(block);
	}
}

static _Atomic bool quiet_ended;

/* The kernel ends the process when this thread makes a system call while it allocates. */
static void *quietly(void *unused)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0), /* for systems whose vDSO has no clock */
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	allocate_and_free(1); /* the thread's first record asks for the thread's number */
	filter_calls(filter, sizeof filter / sizeof *filter);
	allocate_and_free(count);
	atomic_store(&quiet_ended, true);
	syscall(SYS_exit, 0);
	return unused; /* not reached */
}

static void quiet(void)
{
	pthread_t thread;
	start(&thread, quietly, NULL);
	while (!atomic_load(&quiet_ended))
		usleep(1000);
}

/* Prints nanoseconds for an allocation and its free, the least of many rounds; other programs' time does not count. */
static void timed(void)
{
	double best = 1e9;
	for (int round = 0; round < 40; round++) {
		double start = now(CLOCK_THREAD_CPUTIME_ID);
		allocate_and_free(count);
		double took = (now(CLOCK_THREAD_CPUTIME_ID) - start) / count * 1e9;
		best = took < best ? took : best;
	}
	printf("%.1f\n", best);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	path = argv[2];
	count = argc > 3 ? atoi(argv[3]) : 0;
	limit = argc > 4 ? (rlim_t)atoi(argv[4]) << 10 : 0;
	CHECK(RUN_PART(argv[1], {"killed", killed}, {"churn", churn_all}, {"full", full}, {"cut", cut},
		       {"removed", removed}, {"faulting", faulting}, {"quiet", quiet}, {"timed", timed}));
	return 0;
}
