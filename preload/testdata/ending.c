/* A program that others pause and then ask to end by a signal (cmd/tms/signals_test.go). The argument says how it ends;
 * the lines of its standard input ask what it sees of its signals. */
#include "host.h"

enum { SIZE = 8 * MIB, PAUSED = 401 };

static void *memory;
static const char *how;
static bool exits, stays;
static _Atomic bool stop;
static volatile sig_atomic_t came, sender, code, others;

static void on_end(int signal, siginfo_t *info, void *context)
{
	(void)context;
	came = signal, sender = info->si_pid, code = info->si_code;
	stop = true;
	if (exits)
		_exit(0);
}

static void on_end_plainly(int signal)
{
	came = signal;
	stop = true;
}

static void on_other(int signal)
{
	(void)signal;
	others++;
}

/* Resumes what it has paused itself, and goes on as a program that works. */
static _Atomic bool goes;

static void resume_own(void)
{
	EXPECT(tms_pause(NULL), 0);
	printf("ready\n");
	fflush(stdout);
	while (!goes)
		usleep(1000);
	EXPECT(tms_resume(NULL), 0);
}

/* Gives the device work until the program is to end, and returns the code of a call that failed. */
static void *work(void *unused)
{
	long failed = 0;
	(void)unused;
	while (!stop) {
		failed = cudaMemset((char *)memory + MIB, 7, 64);
		usleep(1000);
	}
	if (failed == PAUSED) { /* neither does another call wait, nor one of the driver's */
		EXPECT(cudaMemset(memory, 7, 64), PAUSED);
		EXPECT(cuMemsetD32_v2((uintptr_t)memory, 7, 16), PAUSED);
	} else
		EXPECT(failed, 0);
	return (void *)failed;
}

static void vfork_child(void)
{
	pid_t child = vfork();
	if (child == 0) {
		struct sigaction plain = {.sa_handler = SIG_DFL};
		for (int number = 1; number < 32; number++)
			sigaction(number, &plain, NULL);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	EXPECT(code_of(child), 0);
}

static void answer(const char *line)
{
	struct sigaction found, next = {.sa_sigaction = on_end, .sa_flags = SA_SIGINFO | SA_RESTART};
	if (strcmp(line, "action\n") == 0) {
		EXPECT(sigaction(SIGTERM, NULL, &found), 0);
		printf("%d %d\n", found.sa_sigaction == on_end, found.sa_flags & (SA_RESTART | SA_SIGINFO | SA_RESETHAND));
	} else if (strcmp(line, "replace\n") == 0) {
		EXPECT(sigaction(SIGTERM, &next, &found), 0);
		printf("%d\n", found.sa_sigaction == on_end);
	} else if (strcmp(line, "go\n") == 0) {
		goes = true;
		puts("ok");
	} else if (strcmp(line, "vfork\n") == 0) {
		vfork_child();
		puts("ok");
	} else if (strcmp(line, "others\n") == 0)
		printf("%d\n", (int)others);
	else if (strcmp(line, "again\n") == 0) { /* it goes on after all */
		stop = false;
		puts("ok");
	} else if (strcmp(line, "failing\n") == 0)
		printf("%d\n", cudaMemset(memory, 1, 4));
	else
		CHECK(!"a line that is known");
	fflush(stdout);
}

static void *listen_to_test(void *unused)
{
	char line[100];
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	while (fgets(line, sizeof line, stdin))
		answer(line);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t listener, worker;
	CHECK(argc > 1);
	how = argv[1];
	exits = strcmp(how, "exits") == 0, stays = strcmp(how, "stays") == 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct sigaction action = {.sa_sigaction = on_end, .sa_flags = SA_SIGINFO | (exits ? (int)SA_RESETHAND : 0)};
	const int ends[] = {SIGINT, SIGTERM, SIGHUP};
	for (int i = 0; i < 3; i++) {
		if (strcmp(how, "plain") == 0)
			signal(ends[i], on_end_plainly);
		else
			EXPECT(sigaction(ends[i], &action, NULL), 0);
	}
	signal(SIGUSR1, on_other);
	signal(SIGCHLD, on_other);
	memory = kept_memory(SIZE, "weights", 3);
	EXPECT(cudaMemset((char *)memory + MIB, 7, 64), 0);
	EXPECT(tms_serve(), 0);
	start(&listener, listen_to_test, NULL);
	if (strcmp(how, "resumes") == 0)
		resume_own();
	else
		printf("ready\n");
	fflush(stdout);
	void *failed;
	if (strcmp(how, "apart") == 0) {
		sigset_t set, was;
		sigfillset(&set);
		pthread_sigmask(SIG_SETMASK, &set, &was);
		start(&worker, work, NULL);
		while (!stop)
			sigsuspend(&was);
		EXPECT(pthread_join(worker, &failed), 0);
	} else
		failed = work(NULL);
	while (stays && stop) /* until it hears that it is to go on */
		usleep(1000);
	if (stays)
		failed = work(NULL);
	if (!failed) {
		unsigned *words = malloc(SIZE);
		EXPECT(cudaMemcpy(words, memory, SIZE, 2), 0);
		for (size_t i = 0; i < SIZE / 4; i++)
			if (i < MIB / 4 || i >= MIB / 4 + 16)
				EXPECT(words[i], (unsigned)(i * 2654435761u) ^ 3);
	}
	printf("signal %d from %d with %d, calls returned %ld\n", (int)came, (int)sender, (int)code, (long)failed);
	return 0;
}
