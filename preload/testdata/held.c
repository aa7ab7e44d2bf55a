/* A host that uses NVML, and does what the lines of its standard input say (held_test.go). It answers each with a line. */
#include "host.h"

enum { DEVICES = 2, UUID = 96 };

static struct {
	int (*init)(void), (*shutdown)(void);
	int (*by_index)(unsigned, void **), (*uuid)(void *, char *, unsigned), (*wait)(void *, void *, unsigned);
} nvml;
static void *handles[DEVICES];
static char uuids[DEVICES][UUID];

static void ask(void)
{
	for (unsigned i = 0; i < DEVICES; i++) {
		EXPECT(nvml.by_index(i, &handles[i]), 0);
		EXPECT(nvml.uuid(handles[i], uuids[i], UUID), 0);
	}
}

static void begin(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	CHECK(library);
	nvml.init = (int (*)(void))dlsym(library, "nvmlInit_v2");
	nvml.shutdown = (int (*)(void))dlsym(library, "nvmlShutdown");
	nvml.by_index = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	nvml.uuid = (int (*)(void *, char *, unsigned))dlsym(library, "nvmlDeviceGetUUID");
	nvml.wait = (int (*)(void *, void *, unsigned))dlsym(library, "nvmlEventSetWait_v2");
	EXPECT(nvml.init(), 0);
	ask();
}

/* Reports whether each handle is still that of its device. */
static bool holds(void)
{
	for (int i = 0; i < DEVICES; i++) {
		char uuid[UUID] = "";
		if (nvml.uuid(handles[i], uuid, UUID) != 0 || strcmp(uuid, uuids[i]) != 0)
			return false;
	}
	return true;
}

static bool opens(const char *wanted)
{
	for (int fd = 0; fd < 64; fd++) {
		char link[32], target[4096] = "";
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		if (readlink(link, target, sizeof target - 1) > 0 && strcmp(target, wanted) == 0)
			return true;
	}
	return false;
}

/* Forks as soon as NVML has closed its file, and so is being ended. Two threads of the child then use it at once. */
static void *holds_too(void *unused)
{
	(void)unused;
	CHECK(holds());
	return NULL;
}

static int child_code;
static void *fork_at_the_end(void *unused)
{
	while (opens(getenv("CUDASIM_NVML_FILE")))
		;
	pid_t child = fork();
	if (child == 0) {
		pthread_t other;
		alarm(20); /* it would wait for good */
		start(&other, holds_too, NULL);
		CHECK(holds());
		join(other);
		_exit(0);
	}
	child_code = code_of(child);
	return unused;
}

static void *memory;
static _Atomic int entered, left, stays, returned;
static bool uses_cuda, asks_nvml;
void in_constructor(void);
void in_constructor(void)
{
	entered = 1;
	if (uses_cuda)
		EXPECT(cudaMemset(memory, 7, MIB), 0);
	if (asks_nvml)
		holds();
	left = 1;
	AWAIT(!stays);
}

static void *open_library(void *path)
{
	CHECK(dlopen(path, RTLD_NOW));
	return NULL;
}

/* A call of NVML that takes seconds. */
static void *wait_for_event(void *seconds)
{
	char event[16];
	entered = 1;
	nvml.wait(NULL, event, 1000 * (unsigned)atoi(seconds));
	returned = 1;
	return NULL;
}

static void *wait_for_good(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int threads_named(const char *named)
{
	int count = 0;
	DIR *all = opendir("/proc/self/task");
	CHECK(all);
	for (struct dirent *entry; (entry = readdir(all));) {
		char path[300], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%.200s/comm", entry->d_name);
		FILE *file = *entry->d_name == '.' ? NULL : fopen(path, "r");
		count += file && fgets(name, sizeof name, file) && (!named || strncmp(name, named, strlen(named)) == 0);
		if (file)
			fclose(file);
	}
	closedir(all);
	return count;
}

/* The word on which the listener sleeps. */
static volatile uint32_t *word(void)
{
	char line[5000];
	unsigned long at = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps) && !at)
		if (strstr(line, "/memfd:tms-listener"))
			at = strtoul(line, NULL, 16);
	fclose(maps);
	return (volatile uint32_t *)at;
}

static const char *run(char *line)
{
	static pthread_t thread;
	char *rest = strchr(line, ' ');
	line[strcspn(line, "\n ")] = 0;
	if (rest) {
		rest++;
		rest[strcspn(rest, "\n")] = 0;
	}
	if (strcmp(line, "begin") == 0) {
		begin();
	} else if (strcmp(line, "thread") == 0) {
		start(&thread, wait_for_good, NULL);
	} else if (strcmp(line, "again") == 0) {
		EXPECT(nvml.shutdown(), 0);
		EXPECT(nvml.init(), 0);
		ask();
	} else if (strcmp(line, "holds") == 0) {
		return holds() ? "ok" : "no";
	} else if (strcmp(line, "fork") == 0) {
		start(&thread, fork_at_the_end, NULL);
	} else if (strcmp(line, "reap") == 0) {
		join(thread);
		return child_code == 0 ? "ok" : "the child has failed";
	} else if (strcmp(line, "allocate") == 0) {
		memory = pausable(MIB, "memory", true);
	} else if (strcmp(line, "open") == 0 || strcmp(line, "ask") == 0 || strcmp(line, "both") == 0) {
		uses_cuda = strcmp(line, "ask") != 0;
		asks_nvml = strcmp(line, "open") != 0;
		start(&thread, open_library, strdup(rest));
		AWAIT(entered);
	} else if (strcmp(line, "stay") == 0) { /* in the constructor */
		stays = 1;
	} else if (strcmp(line, "left") == 0) {
		AWAIT(left);
	} else if (strcmp(line, "leave") == 0) {
		stays = 0;
	} else if (strcmp(line, "child") == 0) {
		pid_t child = fork();
		if (child == 0)
			_exit(holds() ? 0 : 1);
		return code_of(child) == 0 ? "ok" : "no";
	} else if (strcmp(line, "event") == 0) {
		start(&thread, wait_for_event, strdup(rest));
		AWAIT(entered);
	} else if (strcmp(line, "returned") == 0) {
		join(thread);
		CHECK(returned);
	} else if (strcmp(line, "waits") == 0) {
		CHECK(!left);
	} else if (strcmp(line, "opened") == 0) {
		join(thread);
		CHECK(left);
	} else if (strcmp(line, "alone") == 0) { /* as only a process with one thread may */
		EXPECT(threads_named(NULL), 1);
		EXPECT(unshare(CLONE_NEWUSER), 0);
	} else if (strcmp(line, "listener") == 0) {
		return threads_named("tms-listener") > 0 ? "yes" : "no";
	} else if (strcmp(line, "write") == 0) { /* as a thread that was about to, when the listener has ended */
		volatile uint32_t *there = word();
		CHECK(there);
		pausable(MIB, "memory", true);
		AWAIT(threads_named("tms-listener") == 0);
		*there = 1;
	} else if (strcmp(line, "small") == 0) {
		limit_to(RLIMIT_AS, address_space());
	} else if (strcmp(line, "large") == 0) {
		limit_to(RLIMIT_AS, RLIM_INFINITY);
	} else {
		CHECK(!"a word that is known");
	}
	return "ok";
}

int main(void)
{
	char line[5000];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdin, NULL, _IONBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		printf("%s\n", run(line));
		fflush(stdout);
	}
	return 0;
}
