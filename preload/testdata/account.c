/* A host whose account is read from outside (account_test.go): it does what the lines of its standard input say, and
 * answers each with a code. LIBRARIES: paths, separated by colons. */
#include "host.h"

enum { THREADS = 6, ROUNDS = 400, LIBRARIES = 4 };
typedef int accounted(const char *, size_t);
static accounted *libraries[LIBRARIES];
static void *first; /* pausable, because a process without any does not listen */

/* Threads free one another's blocks, so that addresses go from thread to thread at once. */
static void *_Atomic shared[8];

static void *churn(void *number)
{
	struct random r = {(unsigned long)number * 7919 + 1};
	for (int i = 0; i < ROUNDS; i++) {
		void *mine = NULL;
		EXPECT(cudaMalloc(&mine, (1 + draw(&r, 3)) * MIB), 0);
		mine = __atomic_exchange_n((void **)&shared[draw(&r, 8)], mine, __ATOMIC_SEQ_CST);
		EXPECT(cudaFree(mine), 0);
	}
	return NULL;
}

/* Children are made while threads allocate, with and without fork handlers (without them the simulator's locks stay as
 * they were). Each child's requests are refused, and it ends. */
static void make_children(void)
{
	for (int i = 0; i < 20; i++) {
		pid_t child = i % 2 ? fork() : _Fork();
		if (child == 0) {
			void *pointer = NULL;
			alarm(120);
			_exit((i % 2 && cudaMalloc(&pointer, MIB) == 0) || cudaFree(first) == 0);
		}
		EXPECT(code_of(child), 0);
	}
}

static int storm(bool forks)
{
	pthread_t threads[THREADS];
	start_all(threads, THREADS, churn);
	if (forks)
		make_children();
	join_all(threads, THREADS);
	for (int i = 0; i < 8; i++) {
		EXPECT(cudaFree(shared[i]), 0);
		shared[i] = NULL;
	}
	return 0;
}

/* A context of the program's own, with memory in it, that ends. */
static int context(bool ends)
{
	int (*create)(void **, void *, unsigned, int) = dlsym(RTLD_DEFAULT, "cuCtxCreate_v4");
	void *before = NULL, *own = NULL;
	EXPECT(cuCtxGetCurrent(&before), 0);
	EXPECT(create(&own, NULL, 0, 0), 0);
	for (int i = 0; i < 3; i++)
		EXPECT(libraries[0]("malloc", 2), 0);
	if (!ends) {
		sim_fail("cuCtxDestroy", 1, 999);
		EXPECT(cuCtxDestroy_v2(own), 999);
		return 0;
	}
	EXPECT(cuCtxDestroy_v2(own), 0);
	EXPECT(libraries[0]("forget", 0), 0);
	EXPECT(cuCtxSetCurrent(before), 0);
	return 0;
}

static int run(char *line)
{
	char *word = strtok(line, " \n"), *what = strtok(NULL, " \n"), *number = strtok(NULL, " \n");
	CHECK(word);
	if (*word >= '0' && *word < '0' + LIBRARIES)
		return libraries[*word - '0'](what, number ? (size_t)atoi(number) : 0);
	if (strcmp(word, "fail") == 0) {
		sim_fail(what, 1, 999);
		return 0;
	}
	if (strcmp(word, "device") == 0)
		return cudaSetDevice(atoi(what));
	if (strcmp(word, "region") == 0) {
		tms_set_interesting_region(atoi(what));
		return 0;
	}
	if (strcmp(word, "storm") == 0 || strcmp(word, "fork") == 0)
		return storm(strcmp(word, "fork") == 0);
	if (strcmp(word, "context") == 0)
		return context(strcmp(what, "ends") == 0);
	if (strcmp(word, "reset") == 0)
		return cudaDeviceReset();
	CHECK(!"a word that is known");
	return -1;
}

int main(void)
{
	char line[200], *paths = strdup(getenv("LIBRARIES"));
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	char *path = strtok(paths, ":");
	for (int i = 0; path; path = strtok(NULL, ":"), i++) {
		void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		CHECK(library && (libraries[i] = (accounted *)dlsym(library, "accounted")));
	}
	free(paths);
	first = pausable(4 * MIB, "first", false);
	EXPECT(tms_serve(), 0);
	puts("0");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		printf("%d\n", run(line));
		fflush(stdout);
	}
	return 0;
}
