/* The host's signals after the library was used: handlers run on stacks that can hold them, while threads allocate,
 * pause and resume; signalfd and sigwait get their signals. Called as: signals CHILDREN */
#include "host.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/time.h>

static _Atomic int alarms, profiles, interrupts, terminations;
static _Atomic bool stop;

/* Needs more stack than a goroutine has. */
static void on_signal(int signal)
{
	volatile char big[64 << 10];
	for (size_t i = 0; i < sizeof big; i += 512)
		big[i] = (char)i;
	atomic_fetch_add(signal == SIGALRM ? &alarms : signal == SIGPROF ? &profiles
			 : signal == SIGINT ? &interrupts : &terminations, 1);
}

static void *work(void *tag)
{
	while (!atomic_load(&stop)) {
		void *p = pausable(2 * MIB, tag, true);
		fill(p, 2 * MIB, 1);
		PAUSE_AND_RESUME(tag);
		CHECK(filled(p, 2 * MIB, 1));
		EXPECT(cudaFree(p), 0);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	static const int handled[] = {SIGALRM, SIGPROF, SIGINT, SIGTERM};
	for (int i = 0; i < 4; i++)
		EXPECT(sigaction(handled[i], &action, NULL), 0);
	sigset_t mine;
	sigemptyset(&mine);
	sigaddset(&mine, SIGCHLD);
	sigaddset(&mine, SIGUSR1);
	EXPECT(pthread_sigmask(SIG_BLOCK, &mine, NULL), 0);

	EXPECT(cudaFree(pausable(MIB, "first", true)), 0);
	for (int i = 0; i < 4; i++) {
		struct sigaction now;
		EXPECT(sigaction(handled[i], NULL, &now), 0);
		CHECK(now.sa_handler == on_signal && !(now.sa_flags & SA_ONSTACK));
	}

	pthread_t thread[3];
	static char tags[3][2] = {"a", "b", "c"};
	for (int i = 0; i < 3; i++)
		start(&thread[i], work, tags[i]);
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	EXPECT(setitimer(ITIMER_REAL, &often, NULL), 0);
	EXPECT(setitimer(ITIMER_PROF, &often, NULL), 0);
	int fd = signalfd(-1, &mine, SFD_CLOEXEC);
	CHECK(fd >= 0);
	for (int i = 0; i < atoi(argv[1]); i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		struct signalfd_siginfo info;
		EXPECT(read(fd, &info, sizeof info), sizeof info);
		EXPECT(info.ssi_signo, SIGCHLD);
		EXPECT(waitpid(pid, NULL, 0), pid);
		EXPECT(kill(getpid(), SIGUSR1), 0);
		EXPECT(read(fd, &info, sizeof info), sizeof info);
		EXPECT(info.ssi_signo, SIGUSR1);
		EXPECT(kill(getpid(), i % 2 ? SIGINT : SIGTERM), 0);
	}
	EXPECT(setitimer(ITIMER_REAL, &never, NULL), 0);
	EXPECT(setitimer(ITIMER_PROF, &never, NULL), 0);
	atomic_store(&stop, true);
	join_all(thread, 3);
	CHECK(atomic_load(&alarms) > 20);
	CHECK(atomic_load(&profiles) > 5);
	CHECK(atomic_load(&interrupts) > 0 && atomic_load(&terminations) > 0);
	return 0;
}
