/* Every function of the driver does as the table says (rows.h, which the test writes from forward/calls):
 *
 *   X(symbol, how many arguments, WAITS, PASSES or OURS, room, of which argument)
 *
 * WAITS for memory that is paused; PASSES, on to the driver; or is OURS, and has tests of its own. The room is as in
 * gate/reach/calls.h. Its libcuda.so.1 is checking.c. argument: the part. */
#include "calls.h"
#include "host.h"

enum where { WAITS, PASSES, OURS };
enum room { NEVER, SOME, BYTES, DEVICE };

static struct row {
	const char *name;
	int words, argument;
	enum where where;
	enum room room;
	struct watched watched;
	pthread_t thread;
	_Atomic pid_t number;
	_Atomic bool done;
	int code;
} rows[] = {
#define ARGUMENT(letter) (#letter[0] == '0' ? -1 : #letter[0] - 'a')
#define X(symbol, words, where, room, argument) {#symbol, words, ARGUMENT(argument), where, room, {0}, 0, 0, 0, 0},
	ROWS(X)
#undef X
};
enum { COUNT = sizeof rows / sizeof *rows };

static void (*watch)(struct watched *);

/* Both ways to the function: bound by the loader, and from the driver's own handle. */
static void *function_of(const char *name)
{
	static void *driver;
	if (!driver)
		CHECK((driver = dlopen("libcuda.so.1", RTLD_NOW)));
	void *bound = dlsym(RTLD_DEFAULT, name), *by_handle = dlsym(driver, name);
	if (!bound || bound != by_handle) {
		fprintf(stderr, "%s: the loader binds %p, the driver's handle has %p\n", name, bound, by_handle);
		_exit(1);
	}
	return bound;
}

static int call(void *function, int words, const uintptr_t *w)
{
	typedef int all(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
			uintptr_t, uintptr_t);
	(void)words; /* a function does not see that there are more */
	return ((all *)function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10]);
}

static void *make(void *argument)
{
	struct row *row = argument;
	row->number = (pid_t)syscall(SYS_gettid);
	watch(&row->watched);
	row->code = call(function_of(row->name), row->words, row->watched.words);
	watch(NULL);
	row->done = true;
	return NULL;
}

static void prepare(struct row *row, uintptr_t address, int first)
{
	row->watched = (struct watched){.name = row->name, .address = address, .codes = {first, UNTOUCHED}};
	for (int i = 0; i < WORDS_MOST; i++)
		row->watched.words[i] = address ? address + (uintptr_t)i : 1000 + (uintptr_t)i;
}

static void expect(const struct row *row, int calls, int code)
{
	if (row->watched.calls == calls && row->code == code)
		return;
	fprintf(stderr, "%s: %d calls of the driver, not %d; the code is %d, not %d\n", row->name, row->watched.calls, calls,
		row->code, code);
	_exit(1);
}

/* A pause from outside holds what needs memory, and lets all else go on. */
static void paused(void)
{
	enum { SIZE = 2 * MIB };
	int waiting = 0, passing = 0;
	uintptr_t memory = (uintptr_t)pausable(SIZE, "t", true);
	EXPECT(tms_pause_gated("t", 60), 0);
	for (struct row *row = rows; row < rows + COUNT; row++) {
		if (row->where == OURS)
			continue;
		prepare(row, memory, UNTOUCHED);
		if (row->where == WAITS) {
			start(&row->thread, make, row);
			waiting++;
		} else {
			make(row);
			expect(row, 1, NOT_MAPPED);
			passing++;
		}
	}
	for (struct row *row = rows; row < rows + COUNT; row++)
		if (row->where == WAITS) {
			AWAIT(row->done || (row->number && in_call(row->number, SYS_futex)));
			if (row->done)
				expect(row, -1, -1); /* it did not wait */
		}
	EXPECT(tms_resume("t"), 0);
	for (struct row *row = rows; row < rows + COUNT; row++)
		if (row->where == WAITS) {
			join(row->thread);
			expect(row, 1, UNTOUCHED);
		}
	printf("%d wait, %d pass\n", waiting, passing);
}

/* Where others make room, what found too little memory is made again. In the place of libtms.so is room.c. */
static void again(void)
{
	int (*asked)(int *, size_t *) = (int (*)(int *, size_t *))dlsym(RTLD_DEFAULT, "room_asked");
	CHECK(asked);
	for (struct row *row = rows; row < rows + COUNT; row++) {
		int device = 0;
		size_t bytes = 0;
		prepare(row, 0, NO_MEMORY);
		make(row);
		expect(row, row->room ? 2 : 1, row->room ? UNTOUCHED : NO_MEMORY);
		EXPECT(asked(&device, &bytes), row->room ? 1 : 0);
		if (row->room == DEVICE)
			EXPECT(device, 1000 + row->argument);
		if (row->room == BYTES)
			EXPECT(bytes, 1000 + row->argument);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	watch = (void (*)(struct watched *))dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), "checking_watch");
	CHECK(watch);
	CHECK(RUN_PART(argv[1], {"paused", paused}, {"again", again}));
	return 0;
}
