/* recording writes what the process does with device memory to a file: each allocation and free, and the pauses, resumes
 * and tags that recording.go passes on. TMS_TRACE names the file (%p: the process's number), or tms record does.
 * internal/report/trace reads the records and documents them. This is C and does not wake Go, so any program can be
 * recorded.
 *
 * The first allocation creates the file: most processes that inherit the variable make none. Records are written
 * through a mapping, a window at a time, so they are in the file at once, whatever ends the process. fallocate reserves
 * the blocks of a window first, so a full disk is an error and not a fault. If another process truncates the file,
 * taken handles the fault and puts other memory there.
 *
 * No descriptor is kept: the host may close any, and get the number for a file of its own. Each window opens the file
 * by its name again and compares the inode. A second mapping, which is never read or written, holds the file's lock
 * against another process.
 *
 * A forked child has neither mapping. It writes a file of its own if the name has %p in it, and nothing otherwise. */
#define _GNU_SOURCE
#include "parts.h"
#include "forward.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* As internal/report/trace/records.go has them. */
enum { POPULATE_WRITE = 23 }; /* of Linux 5.14; without it each page is a fault */
enum kind { NONE, ALLOCATE, FREE, FAILURE, UNFREE, POOL_DESTROYED, TEXT, BEGIN, END, FIGURES };
enum { FLAG_PAUSABLE = 1, FLAG_EARLIER = 2, FLAG_STREAM = 4, FLAG_BLOCK = 8, FLAG_MAPPED = 16 };
enum { TEXT_TAG, TEXT_COMMAND, TEXT_DEVICE };
#define MAGIC "TMSTRACE" /* how each recording begins */

struct header {
	char magic[8];
	uint32_t version, process;
	uint64_t monotonic, realtime; /* nanoseconds, at the same moment */
	int64_t utc_offset;	      /* seconds */
	uint64_t reserved[3];
};
struct record {
	_Atomic uint8_t kind; /* written last */
	uint8_t flags;
	int16_t device; /* -1 if not known */
	uint32_t thread; /* for an operation: its number */
	uint64_t time; /* nanoseconds, of CLOCK_MONOTONIC */
	uint64_t address, size, stream, pool, tag, other;
};
_Static_assert(sizeof(struct header) == 64 && sizeof(struct record) == 64, "as internal/report/trace reads them");

enum { WINDOW = 1 << 20, TOUCHED = 64 << 10, TAGS = 256, TEXT_MOST = 512 };

static const char *pattern; /* TMS_TRACE, or NULL */
static __thread pid_t thread __attribute__((tls_model("initial-exec")));

/* The lock guards everything below except window and lost, which taken also uses. */
static enum { UNOPENED, OPEN, STOPPED } state;
static bool from_outside;     /* tms record asked */
static char asked[PATH_MAX];  /* the file's name, as it was given */
static char path[PATH_MAX];   /* the same from the root, to open it again */
static dev_t device;
static ino_t inode;
static void *lock_kept;	      /* the mapping that keeps the file's lock */
static char *_Atomic window;  /* at offset, or NULL before it is mapped */
static _Atomic bool lost;
static off_t offset;	      /* of the window in the file */
static size_t filled;	      /* bytes of the window */
static size_t touched;	      /* bytes of the window whose pages exist already, so that few records fault */
static _Atomic uint64_t last;	 /* the time of the last record; read without lock, as is sampled */
static _Atomic uint64_t sampled; /* when recording.go is asked for figures again */
static const char *named[TAGS]; /* some of the tags that the file names */
static _Atomic int recordings; /* so far */
static char complaint[512];   /* why it stopped, or "" if on request */

extern void tmsRecordFigures(void); /* recording.go */
static bool taken(const void *address);

AT_LOAD static void turn(bool on)
{
	if (on)
		atomic_store(&handlers_taker, taken);
	watch_turn(WATCH_RECORDS, on);
}

static int opened(const char *name, int flags)
{
	int number = open(name, flags | O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
	if (number >= 0 && number <= STDERR_FILENO) { /* the host has closed these, but may still write to them */
		int above = fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(number);
		number = above;
	}
	return number;
}

/* Opens the file again. Returns -1 if its name now leads to another file, or to none. */
static int reopened(void)
{
	struct stat found;
	int number = opened(path, 0);
	if (number >= 0 && (fstat(number, &found) != 0 || found.st_dev != device || found.st_ino != inode)) {
		close(number);
		errno = ENOENT;
		number = -1;
	}
	return number;
}

static void close_window(void)
{
	char *was = atomic_exchange(&window, NULL);
	if (was)
		munmap(was, WINDOW);
	offset += (off_t)filled;
	filled = 0;
}

/* Cuts off the unwritten end of the file. A later record maps a window again. */
static void give_back(void)
{
	close_window();
	int number = atomic_load(&lost) ? -1 : reopened();
	if (number < 0)
		return;
	if (ftruncate(number, offset) != 0)
		errno = 0; /* zeros after the last record do no harm */
	close(number);
}

/* A file that another process has locked is left alone. */
static void close_file(void)
{
	if (!lock_kept)
		return;
	give_back();
	munmap(lock_kept, sizeof(struct header));
	lock_kept = NULL;
}

static void stop(const char *what, const char *why)
{
	snprintf(complaint, sizeof complaint, "the recording to %.300s: %s: %s; %s is recorded", asked, what, why,
		 state == OPEN ? "no more" : "nothing");
	if (!from_outside || state == OPEN) /* a client outside gets the reply instead */
		error_log(complaint);
	close_file();
	state = STOPPED;
	turn(false);
}

static bool taken(const void *address)
{
	char *mine = atomic_load(&window);
	if (!mine || (uintptr_t)address - (uintptr_t)mine >= WINDOW)
		return false;
	atomic_store(&lost, true);
	return mmap(mine, WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* Makes the limit of a file's size (ulimit -f) an error, not a signal that ends the host. */
static bool without_signal(bool (*call)(int, off_t), int number, off_t from)
{
	sigset_t one, saved;
	static sigset_t pending; /* static, because the stack may be small; the caller has the lock */
	sigemptyset(&one);
	sigaddset(&one, SIGXFSZ);
	sigemptyset(&pending);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &one, &saved);
	bool done = call(number, from);
	int error = errno;
	if (!done && error == EFBIG && !sigismember(&pending, SIGXFSZ))
		sigtimedwait(&one, NULL, &(struct timespec){0, 0});
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	errno = error;
	return done;
}

/* Reserves whole pages of blocks for a window. Where the file system has no fallocate, it writes zeros. */
static bool have_blocks(int number, off_t from)
{
	static const char zeros[4096];
	if (fallocate(number, 0, from, WINDOW) == 0)
		return true;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return false;
	for (off_t at = offset; at < from + WINDOW;) { /* after the records */
		size_t most = (size_t)(from + WINDOW - at) < sizeof zeros ? (size_t)(from + WINDOW - at) : sizeof zeros;
		ssize_t count = pwrite(number, zeros, most, at);
		if (count <= 0)
			return false;
		at += count;
	}
	return true;
}

static bool map_window(int number)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	off_t from = offset / (off_t)page * (off_t)page;
	if (!without_signal(have_blocks, number, from))
		return false;
	void *mapped = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, number, from);
	if (mapped == MAP_FAILED)
		return false;
	madvise(mapped, WINDOW, MADV_DONTFORK);
	filled = (size_t)(offset - from);
	offset = from;
	touched = filled / TOUCHED * TOUCHED;
	atomic_store(&window, mapped);
	return true;
}

static bool next_window(void)
{
	int cancelled;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled); /* a thread that ended here would keep the lock */
	close_window();
	int number = reopened();
	bool mapped = number >= 0 && map_window(number);
	int error = errno;
	if (number >= 0)
		close(number);
	if (!mapped)
		stop(number < 0 ? "the file was removed, or another has its name" : "cannot be written", strerror(error));
	pthread_setcancelstate(cancelled, NULL);
	return mapped;
}

static uint64_t nanoseconds(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Returns room in the window, or NULL if the recording has stopped. */
static char *room(size_t bytes)
{
	if (unlikely(filled + bytes > WINDOW || !atomic_load_explicit(&window, memory_order_relaxed)) && !next_window())
		return NULL;
	char *to = atomic_load_explicit(&window, memory_order_relaxed) + filled;
	filled += bytes;
	if (unlikely(filled > touched)) {
		madvise(to - (filled - bytes) + touched, TOUCHED, POPULATE_WRITE);
		touched += TOUCHED;
	}
	return to;
}

/* Writes the text behind the record before the record itself. */
static void put(enum kind kind, struct record r, const char *text)
{
	size_t length = text ? strnlen(text, TEXT_MOST) : 0;
	size_t slots = 1 + (length + sizeof r - 1) / sizeof r;
	struct record *to = state == OPEN ? (struct record *)room(slots * sizeof r) : NULL;
	if (!to)
		return;
	if (unlikely(!thread))
		thread = (pid_t)syscall(SYS_gettid);
	if (!r.thread)
		r.thread = (uint32_t)thread;
	r.time = nanoseconds(CLOCK_MONOTONIC);
	atomic_store_explicit(&last, r.time, memory_order_relaxed);
	if (text) {
		r.size = length;
		memcpy(to + 1, text, length);
	}
	*to = r;
	atomic_store_explicit(&to->kind, kind, memory_order_release);
	if (unlikely(atomic_load_explicit(&lost, memory_order_relaxed)))
		stop("cannot be written", "it was cut short, or its disk fails");
}

/* Names are never freed, so a tag's number is the address of its name. A tag that loses its place is named again. */
static uint64_t tag_number(const char *tag)
{
	if (!tag)
		return 0;
	const char **place = &named[((uintptr_t)tag * 0x9E3779B97F4A7C15u >> 32) % TAGS];
	if (unlikely(*place != tag)) {
		*place = tag;
		put(TEXT, (struct record){.tag = (uintptr_t)tag, .other = TEXT_TAG}, tag);
	}
	return (uintptr_t)tag;
}

static void put_command(void)
{
	static char command[TEXT_MOST]; /* under the lock */
	int number = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = number < 0 ? 0 : read(number, command, sizeof command - 1);
	if (number >= 0)
		close(number);
	for (ssize_t i = 0; i + 1 < length; i++)
		if (!command[i])
			command[i] = ' ';
	command[length < 0 ? 0 : length] = 0;
	put(TEXT, (struct record){.other = TEXT_COMMAND}, command);
}

OUT_OF_LINE bool take_file(int number)
{
	static struct stat found; /* not on the stack, which may be small; lock is held */
	if (fstat(number, &found) != 0 || !S_ISREG(found.st_mode)) {
		stop("cannot be used", "it is no plain file");
		return false;
	}
	if (flock(number, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		stop("another process records to it; a %p in the name gives each its own", strerror(errno));
		return false;
	}
	char begin[sizeof(((struct header *)0)->magic)] = ""; /* TMS_TRACE names what the program's own user wants replaced */
	if (from_outside && found.st_size > 0 &&
	    (pread(number, begin, sizeof begin, 0) < 0 || memcmp(begin, MAGIC, sizeof begin) != 0)) {
		stop("cannot be used", "it is no recording, and would be lost; name another file");
		return false;
	}
	device = found.st_dev;
	inode = found.st_ino;
	char link[32];
	snprintf(link, sizeof link, "/proc/self/fd/%d", number);
	ssize_t length = readlink(link, path, sizeof path - 1);
	if (length < 0)
		snprintf(path, sizeof path, "%s", asked); /* no /proc: right while the host stays in its folder */
	else
		path[length] = 0;
	offset = 0;
	filled = 0;
	atomic_store(&lost, false);
	memset(named, 0, sizeof named);
	lock_kept = NULL;
	void *kept = mmap(NULL, sizeof(struct header), PROT_READ, MAP_SHARED, number, 0);
	if (kept != MAP_FAILED) {
		lock_kept = kept;
		madvise(lock_kept, sizeof(struct header), MADV_DONTFORK);
	}
	if (!lock_kept || ftruncate(number, 0) != 0 || !map_window(number)) {
		stop("cannot be written", strerror(errno));
		return false;
	}
	return true;
}

static void open_file(void)
{
	int number = opened(asked, O_CREAT);
	if (number < 0) {
		stop("cannot be made", strerror(errno));
		return;
	}
	bool taken = take_file(number);
	close(number);
	if (!taken)
		return;
	time_t now = time(NULL);
	static struct tm local; /* static, because the stack may be small */
	static struct header header;
	header = (struct header){
		.magic = MAGIC,
		.version = 1,
		.process = (uint32_t)getpid(),
		.monotonic = nanoseconds(CLOCK_MONOTONIC),
		.realtime = nanoseconds(CLOCK_REALTIME),
		.utc_offset = localtime_r(&now, &local) ? local.tm_gmtoff : 0,
	};
	memcpy(room(sizeof header), &header, sizeof header);
	state = OPEN;
	sampled = 0;
	atomic_fetch_add(&recordings, 1);
	put_command();
}

/* Opens the pattern's file, with the process's number for each %p. */
static void open_pattern(void)
{
	size_t length = 0;
	for (const char *p = pattern; *p && length < sizeof asked; p++) {
		if (p[0] == '%' && p[1] == 'p') {
			length += (size_t)snprintf(asked + length, sizeof asked - length, "%d", (int)getpid());
			p++;
		} else {
			asked[length++] = *p;
		}
	}
	from_outside = false;
	if (length < sizeof asked) {
		asked[length] = 0;
		open_file();
	} else {
		asked[sizeof asked - 1] = 0;
		stop("cannot be made", strerror(ENAMETOOLONG));
	}
}

/* Reports whether there is a recording to write to. The first record opens the file of TMS_TRACE. */
static bool is_open(void)
{
	if (unlikely(state == UNOPENED) && pattern) {
		int cancelled;
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
		open_pattern();
		pthread_setcancelstate(cancelled, NULL);
	}
	return state == OPEN;
}

/* Adds the figures of the tags now and then: after a call of the host's own thread, with no lock held. */
HIDDEN void recording_sample(void)
{
	uint64_t due = atomic_load_explicit(&sampled, memory_order_relaxed);
	if (unlikely(atomic_load_explicit(&last, memory_order_relaxed) >= due) && go_now() == GO_AWAKE &&
	    !(thread_known && thread_known->visit))
		(void)IN_GO((tmsRecordFigures(), SUCCESS));
}

HIDDEN void recording_sample_after(uint64_t pause)
{
	atomic_store(&sampled, nanoseconds(CLOCK_MONOTONIC) + pause);
}

static bool add(enum kind kind, struct record r, const char *tag)
{
	if (!is_open())
		return false;
	r.tag = tag_number(tag);
	put(kind, r, NULL);
	return true;
}

HIDDEN bool recording_allocated(const struct watch_allocation *a, int ordinal, const char *tag)
{
	struct record r = {.device = (int16_t)ordinal, .address = (uintptr_t)a->address, .size = a->size,
			   .stream = (uintptr_t)a->stream, .pool = (uintptr_t)a->pool};
	r.flags = (uint8_t)((a->is_pausable ? FLAG_PAUSABLE : 0) | (a->is_block ? FLAG_BLOCK : 0));
	if (a->code == SUCCESS)
		return a->address && add(ALLOCATE, r, tag);
	r.address = 0;
	r.other = (uint64_t)a->code;
	return add(FAILURE, r, tag);
}

HIDDEN bool recording_freeing(const void *address, const void *stream)
{
	struct record r = {.device = -1, .address = (uintptr_t)address};
	if (stream != WATCH_SAME_STREAM) {
		r.flags = FLAG_STREAM;
		r.stream = (uintptr_t)stream;
	}
	return add(FREE, r, NULL);
}

HIDDEN bool recording_not_freed(const void *address)
{
	return add(UNFREE, (struct record){.device = -1, .address = (uintptr_t)address}, NULL);
}

HIDDEN bool recording_pool_ended(const void *pool)
{
	return add(POOL_DESTROYED, (struct record){.device = -1, .pool = (uintptr_t)pool}, NULL);
}

HIDDEN int recording_number(void)
{
	return atomic_load(&recordings);
}

HIDDEN void recording_changed(void)
{
	if (!watch_begin(WATCH_RECORDS))
		return;
	bool recorded = is_open();
	if (recorded)
		atomic_store(&last, nanoseconds(CLOCK_MONOTONIC));
	watch_end();
	if (recorded)
		recording_sample();
}

/* Adds a record that no entry of watch.c makes. */
static void add_alone(enum kind kind, struct record r, const char *tag)
{
	if (!watch_begin(WATCH_RECORDS))
		return;
	add(kind, r, tag);
	watch_end();
}

HIDDEN void recording_existing(int ordinal, uintptr_t address, uint64_t size, const char *tag, bool earlier, bool mapped)
{
	struct record r = {.device = (int16_t)ordinal, .address = address, .size = size};
	r.flags = (uint8_t)(FLAG_PAUSABLE | (earlier ? FLAG_EARLIER : 0) | (mapped ? FLAG_MAPPED : 0));
	add_alone(ALLOCATE, r, tag);
}

HIDDEN void recording_unmapped(uintptr_t address, uint64_t size)
{
	add_alone(FREE, (struct record){.flags = FLAG_MAPPED, .device = -1, .address = address, .size = size}, NULL);
}

HIDDEN void recording_operation(const struct recording_operation *o)
{
	struct record r = {.flags = (uint8_t)o->kind, .device = (int16_t)o->code, .thread = o->number, .address = o->took,
			   .size = o->bytes, .stream = o->copied, .pool = o->waited, .other = o->copying};
	add_alone(o->over ? END : BEGIN, r, o->tag);
}

HIDDEN void recording_figures(const struct recording_figures *f)
{
	struct record r = {.device = (int16_t)f->device, .address = f->live, .size = f->physical, .stream = f->host,
			   .pool = f->disk, .other = f->peer};
	add_alone(FIGURES, r, f->tag);
}

/* Says which GPU a device is from now on. */
HIDDEN void recording_device(int device, const char *uuid)
{
	if (!watch_begin(WATCH_RECORDS))
		return;
	if (is_open()) /* a reader that does not know this takes it for the name of a tag, which no record has */
		put(TEXT, (struct record){.device = (int16_t)device, .tag = (uintptr_t)uuid, .other = TEXT_DEVICE}, uuid);
	watch_end();
}

/* The parent's blocks are not the child's, and the child lacks the parent's mappings. */
static void forget_in_child(void)
{
	bool own = pattern && !from_outside && strstr(pattern, "%p");
	thread = 0;
	lock_kept = NULL;
	atomic_store(&window, NULL);
	if (state == OPEN)
		state = own ? UNOPENED : STOPPED;
	turn(state == UNOPENED && pattern);
}

AT_LOAD static void follow_forks(void)
{
	static _Atomic bool follows;
	if (!atomic_exchange(&follows, true))
		watch_follow_forks(forget_in_child);
}

HIDDEN const char *recording_start(const char *file)
{
	static char refused[sizeof complaint];
	const char *answer = NULL;
	handlers_find(); /* before the lock: the loader's lock must not be taken under it */
	follow_forks();
	watch_begin_always();
	if (state == OPEN || (pattern && state == UNOPENED)) {
		snprintf(refused, sizeof refused, "it is recorded already, to %.400s", state == OPEN ? asked : pattern);
		answer = refused;
	} else {
		from_outside = true;
		snprintf(asked, sizeof asked, "%s", file);
		open_file();
		if (state == OPEN)
			turn(true);
		else
			answer = complaint;
	}
	watch_end();
	return answer;
}

HIDDEN const char *recording_end(int recording)
{
	watch_begin_always();
	bool is = from_outside && recording == atomic_load(&recordings);
	const char *answer = is && state == STOPPED ? complaint : NULL;
	if (is && state == OPEN) {
		close_file();
		state = STOPPED;
		turn(false);
	}
	watch_end();
	return answer;
}

AT_LOAD HIDDEN void recording_load(void)
{
	pattern = getenv("TMS_TRACE");
	if (pattern && !*pattern)
		pattern = NULL;
	if (!pattern)
		return;
	pattern = region_intern(pattern); /* the environment is the host's to change */
	if (!pattern)
		return;
	turn(true);
	follow_forks();
}

/* Destructors that run later may still record. */
__attribute__((destructor)) static void at_exit(void)
{
	if (!atomic_load(&recordings) || !watch_begin(WATCH_RECORDS)) /* the lock makes a system call where nothing was */
		return;
	if (state == OPEN)
		give_back();
	watch_end();
}
