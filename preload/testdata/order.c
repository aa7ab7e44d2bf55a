/* A resume with an order lets a thread go on that waits for each step, and holds up all others until all is back.
 * Nothing reads memory whose contents are not back. arguments: the part; for "storage" also a copy of libcufile. */
#include "host.h"

enum { SIZE = 4 * MIB, PIECES = 4, STEPS = PIECES - 1, WORDS = 64, ILLEGAL_STATE = 401 };
enum { APART = 1 /* from the default stream */, RELAXED = 2 /* a capture, beside other threads' calls */ };

static char *all[PIECES]; /* the first is in no step, and the others are in one each */
static uint64_t number;

static uint64_t fired(void)
{
	return ((uint64_t(*)(void))simulator("cudasim_failures_fired"))();
}

/* The copy of a piece stands, behind those of other pieces. */
static uint64_t before;
static void stand_behind(int copies)
{
	before = fired();
	sim_fail("cuMemcpyHtoDAsync", copies + 1, -2);
}

static void stands(void)
{
	AWAIT(fired() > before);
}

/* The copy that stands goes on. */
static void go_on(void)
{
	stands();
	sim_fail("cuMemGetInfo", 1, 0); /* that drops no plan for copies */
}

static void let_one_come(void)
{
	stands();
	stand_behind(0);
	sim_fail("cuMemGetInfo", 1, 0);
}

static void make(void)
{
	for (int i = 0; i < PIECES; i++)
		fill(all[i] = pausable(SIZE, "t", true), SIZE, (unsigned)i);
	EXPECT(tms_pause("t"), 0);
}

static const char *const only_t[] = {"t", NULL};

static int resume_in_order_with(const char *const *tags)
{
	tms_ordered order[STEPS];
	for (int i = 0; i < STEPS; i++)
		order[i] = (tms_ordered){all[i + 1], SIZE, i + 1};
	return tms_resume_in_order(tags, 0, order, STEPS, &number);
}

static int resume_in_order(void)
{
	return resume_in_order_with(only_t);
}

/* Resumes so that the first piece is back, and the others are on their way. */
static void begin_with(const char *const *tags)
{
	stand_behind(1);
	EXPECT(resume_in_order_with(tags), 0);
	EXPECT(tms_last_bytes(), SIZE);
	CHECK(!tms_order_is_over(number));
}

static void begin(void)
{
	make();
	begin_with(only_t);
}

static void all_is_back(void)
{
	AWAIT(tms_order_is_over(number));
	for (int i = 0; i < PIECES; i++)
		CHECK(filled(all[i], SIZE, (unsigned)i));
	EXPECT(tms_order_enter(number, STEPS), 0);
	tms_order_leave(number);
}

/* A thread that makes a call, and reports when that has returned. */
struct worker {
	pthread_t thread;
	_Atomic bool done;
	_Atomic pid_t number;
	int (*work)(void *);
	void *argument;
	int code;
};

static void *be_worker(void *argument)
{
	struct worker *w = argument;
	EXPECT(cudaFree(NULL), 0); /* the context */
	w->number = (pid_t)syscall(SYS_gettid);
	w->code = w->work(w->argument);
	w->done = true;
	return NULL;
}

static struct worker *give(int (*work)(void *), void *argument)
{
	struct worker *w = calloc(1, sizeof *w);
	CHECK(w);
	w->work = work;
	w->argument = argument;
	start(&w->thread, be_worker, w);
	return w;
}

static void held_up(struct worker *w)
{
	AWAIT(w->done || (w->number && in_call(w->number, SYS_futex)));
	CHECK(!w->done);
}

static void ended(struct worker *w, int code)
{
	join(w->thread);
	EXPECT(w->code, code);
	free(w);
}

static int add_to(void *word)
{
	return launch_add(word, 1);
}

static unsigned char copied[SIZE];

static int copy_from(void *memory)
{
	return cudaMemcpy(copied, memory, SIZE, 2);
}

static int launch_graph(void *graph)
{
	return cuGraphLaunch(graph, NULL);
}

static int capture(void *stream)
{
	void *graph;
	return cudaStreamBeginCapture(stream, RELAXED) || cudaStreamEndCapture(stream, &graph) || cudaGraphDestroy(graph);
}

/* These do the same in a thread that was let in for the first step. */
static int let_in(int (*work)(void *), void *argument)
{
	EXPECT(tms_order_enter(number, 1), 0);
	int code = work(argument);
	tms_order_leave(number);
	return code;
}

static int enter_and_copy(void *memory)
{
	return let_in(copy_from, memory);
}

static int enter_and_launch_graph(void *graph)
{
	return let_in(launch_graph, graph);
}

static int enter_and_capture(void *stream)
{
	return let_in(capture, stream);
}

static int enter(void *step)
{
	int code = tms_order_enter(number, (int)(intptr_t)step);
	if (code == 0)
		tms_order_leave(number);
	return code;
}

static void steps(void)
{
	void *stream, *captured, *graph;
	unsigned was;
	EXPECT(cudaFree(NULL), 0);
	EXPECT(cuStreamCreate(&stream, APART), 0);
	make();
	EXPECT(tms_resume("t"), 0);
	EXPECT(launch_add((unsigned *)all[3], 0), 0); /* which loads it */
	EXPECT(cudaStreamBeginCapture(stream, 0), 0);
	EXPECT(cudaMemsetAsync(all[3] + 2 * MIB, 7, WORDS, stream), 0);
	EXPECT(cudaStreamEndCapture(stream, &captured), 0);
	EXPECT(cudaGraphInstantiate(&graph, captured, 0), 0);
	EXPECT(tms_pause("t"), 0);
	stand_behind(1);
	EXPECT(resume_in_order(), 0);
	struct worker *stranger = give(add_to, all[0]), *first = give(enter, (void *)1), *last = give(enter, (void *)STEPS);
	held_up(stranger), held_up(first), held_up(last);
	let_one_come();
	ended(first, 0);
	held_up(stranger), held_up(last);

	/* In this thread, step by step; calls nest. */
	EXPECT(tms_order_enter(number, 1), 0);
	EXPECT(tms_order_enter(number, 0), 0);
	tms_order_leave(number);
	EXPECT(cuMemcpyDtoH_v2(&was, (uintptr_t)all[1], sizeof was), 0);
	EXPECT(add_to(all[1]), 0);
	EXPECT(cudaStreamSynchronize(NULL), 0);
	EXPECT(*(unsigned *)all[1], was + 1);
	*(unsigned *)all[1] = was;
	tms_order_leave(number);
	struct worker *after = give(enter_and_copy, all[3]), *of_graph = give(enter_and_launch_graph, graph),
		      *of_capture = give(enter_and_capture, stream);
	held_up(after), held_up(of_graph), held_up(of_capture), held_up(stranger);
	sim_clear_failures();
	ended(last, 0), ended(after, 0), ended(of_graph, 0), ended(of_capture, 0), ended(stranger, 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	CHECK(all[3][2 * MIB] == 7);
	fill(all[3], SIZE, 3), --*(unsigned *)all[0];
	all_is_back();
	EXPECT(tms_pause("t"), 0);
	EXPECT(resume_in_order(), 0);
	all_is_back();
}

static long (*read_file)(void *file, void *base, size_t size, long file_offset, long offset);

static int read_first_byte(void *memory)
{
	static char byte;
	byte = *(char *)memory;
	return read_file(&byte, memory, 1, 0, 0) == 1 ? 0 : 1;
}

static int enter_and_read(void *memory)
{
	return let_in(read_first_byte, memory);
}

/* A read of a file by libcufile, of which this is a copy, waits until all is back. */
static void storage(const char *copy)
{
	void *library = dlopen(copy, RTLD_NOW);
	CHECK(library && (read_file = (long (*)(void *, void *, size_t, long, long))dlsym(library, "cuFileRead")));
	begin();
	let_one_come();
	struct worker *reads = give(enter_and_read, all[0]);
	held_up(reads);
	sim_clear_failures();
	ended(reads, 0);
	all_is_back();
}

/* A thread that leaves is held up again. */
static int enter_leave_and_add(void *word)
{
	EXPECT(tms_order_enter(number, 1), 0);
	EXPECT(add_to(word), 0);
	tms_order_leave(number);
	return add_to(word);
}

static void leaving(void)
{
	begin();
	let_one_come();
	struct worker *w = give(enter_leave_and_add, all[0]);
	held_up(w);
	sim_clear_failures();
	ended(w, 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	*(unsigned *)all[0] -= 2;
	all_is_back();
}

/* What was back stays, calls that wait fail, and a resume brings the rest back. */
static void failing(void)
{
	begin();
	let_one_come();
	EXPECT(enter((void *)1), 0);
	struct worker *stranger = give(add_to, all[0]), *last = give(enter, (void *)STEPS),
		      *copies = give(enter_and_copy, all[3]);
	held_up(stranger), held_up(last), held_up(copies);
	stands();
	sim_fail("cuMemSetAccess", 1, 2); /* of the second step, in its place */
	go_on();
	ended(stranger, ILLEGAL_STATE), ended(copies, ILLEGAL_STATE);
	ended(last, 2);
	FAILS(tms_order_enter(number, 1), 2, "was to bring memory back in an order, and has failed");
	CHECK(strstr(tms_last_error(), "is paused with its contents"));
	EXPECT(add_to(all[1]), ILLEGAL_STATE);
	EXPECT(copy_from(all[3]), ILLEGAL_STATE);
	CHECK(strstr(tms_last_error(), "a resume in an order has failed"));
	CHECK(!tms_order_is_over(number));
	sim_clear_failures();
	EXPECT(tms_resume("t"), 0);
	CHECK(tms_order_is_over(number));
	EXPECT(add_to(all[1]), 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	--*(unsigned *)all[1];
	all_is_back();
	EXPECT(tms_pause_gated("t", 600), 0);
	EXPECT(tms_resume("t"), 0);
	all_is_back();
}

static sem_t callback;

static int enter_and_copy_behind_a_callback(void *memory)
{
	EXPECT(tms_order_enter(number, 0), 0);
	EXPECT(cuLaunchHostFunc(NULL, wait_at, &callback), 0);
	int code = copy_from(memory);
	tms_order_leave(number);
	return code;
}

/* A thread that was let in is still in a call when the order fails: a pause waits for the thread. */
static void failing_inside(void)
{
	sem_init(&callback, 0, 0);
	begin();
	struct worker *copies = give(enter_and_copy_behind_a_callback, all[0]);
	AWAIT(sim_stat("calls:cuMemcpyDtoH") > 0);
	stands();
	sim_fail("cuMemMap", 1, 2);
	go_on();
	AWAIT(cuMemsetD32_v2((uintptr_t)all[0], 0, 1) == ILLEGAL_STATE);
	FAILS(tms_pause_gated("t", 0.1), 909, "has not come back from cuMemcpyDtoH");
	sem_post(&callback);
	ended(copies, 0);
	EXPECT(tms_pause_gated("t", 600), 0);
	EXPECT(tms_resume("t"), 0);
	all_is_back();
}

static int allocate_all(void *size)
{
	void *memory;
	int code = 0;
	IN_REGION(code = cudaMalloc(&memory, *(size_t *)size));
	return code ? code : cudaFree(memory);
}

static int enter_and_allocate_all(void *size)
{
	EXPECT(tms_order_enter(number, 0), 0);
	int code = allocate_all(size);
	tms_order_leave(number);
	return code;
}

/* All memory was taken before the program goes on: what it allocates comes from what is left. */
static void allocating(void)
{
	size_t was = free_bytes(), left = was - PIECES * SIZE, more = was - 3 * SIZE;
	begin();
	ended(give(enter_and_allocate_all, &left), 0);
	ended(give(allocate_all, &left), 0);
	ended(give(enter_and_allocate_all, &more), 2);
	sim_clear_failures();
	all_is_back();
}

static int enter_and_end(void *unused)
{
	(void)unused;
	return tms_order_enter(number, 0);
}

/* A thread ends without leaving: the next one, which has its mark, was not let in. */
static void ending(void)
{
	begin();
	ended(give(enter_and_end, NULL), 0);
	struct worker *stranger = give(add_to, all[0]);
	held_up(stranger);
	sim_clear_failures();
	ended(stranger, 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	--*(unsigned *)all[0];
	all_is_back();
}

static _Atomic int added = -1;

static void add_in_handler(int signal)
{
	(void)signal;
	added = add_to(all[0]);
}

/* A handler launches a kernel above a thread that waits for its step, and so waits until all is back. */
static void handler(void)
{
	EXPECT(launch_add((unsigned *)pausable(SIZE, "other", false), 0), 0); /* which loads it */
	EXPECT(cudaDeviceSynchronize(), 0);
	CHECK(signal(SIGUSR1, add_in_handler) != SIG_ERR);
	begin();
	struct worker *last = give(enter, (void *)STEPS);
	held_up(last);
	EXPECT(pthread_kill(last->thread, SIGUSR1), 0);
	held_up(last);
	EXPECT(added, -1);
	sim_clear_failures();
	ended(last, 0);
	EXPECT(added, 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	--*(unsigned *)all[0];
	all_is_back();
}

/* Waits until a thread has slept for a moment: it waits for the resume, in this library. */
static void waits(struct worker *w)
{
	AWAIT(w->number);
	usleep(20000);
	CHECK(!w->done);
}

static int destroy(void *context)
{
	return cuCtxDestroy_v2(context);
}

/* Destroys the context in which a piece was allocated, before its step and during it. */
static void destroyed(void)
{
	for (int on_its_way = 0; on_its_way < 2; on_its_way++) {
		void *own, *was;
		EXPECT(cudaFree(NULL), 0);
		EXPECT(cuCtxGetCurrent(&was), 0);
		for (int i = 0; i < PIECES; i++) {
			if (i == 2)
				EXPECT(cuCtxCreate_v2(&own, 0, 0), 0);
			fill(all[i] = pausable(SIZE, "t", true), SIZE, (unsigned)i);
			EXPECT(cuCtxSetCurrent(was), 0);
		}
		EXPECT(tms_pause("t"), 0);
		stand_behind(1 + on_its_way);
		EXPECT(resume_in_order(), 0);
		stands();
		struct worker *w = give(destroy, own);
		if (on_its_way)
			waits(w);
		else
			AWAIT(w->done);
		sim_clear_failures();
		ended(w, 0);
		AWAIT(tms_order_is_over(number));
		for (int i = 0; i < PIECES; i++) {
			CHECK(i == 2 || filled(all[i], SIZE, (unsigned)i));
			EXPECT(cudaFree(all[i]), i == 2 ? 1 : 0);
		}
	}
}

/* A client pauses the program in the middle. Each piece has a tag of its own. */
static void outside(void)
{
	static const char *const tags[PIECES] = {"first", "on its way", "later", "last"};
	char line[16];
	for (int i = 0; i < PIECES; i++)
		fill(all[i] = pausable(SIZE, tags[i], true), SIZE, (unsigned)i);
	EXPECT(tms_pause(NULL), 0);
	begin_with(NULL);
	CHECK(fgets(line, sizeof line, stdin) && puts("begun") > 0 && fflush(stdout) == 0);
	CHECK(fgets(line, sizeof line, stdin));
	sim_clear_failures();
	CHECK(puts("goes on") > 0 && fflush(stdout) == 0);
	CHECK(!fgets(line, sizeof line, stdin)); /* it has been paused, and the client has gone */
	all_is_back();
}

/* Frees what has not come back after a failure: nothing is left to wait for. */
static void failing_and_freed(void)
{
	begin();
	sim_fail("cuMemMap", 1, 2);
	go_on();
	AWAIT(cuMemsetD32_v2((uintptr_t)all[0], 0, 1) == ILLEGAL_STATE);
	for (int i = 1; i < PIECES; i++)
		EXPECT(cudaFree(all[i]), 0);
	AWAIT(tms_order_is_over(number));
	EXPECT(add_to(all[0]), 0);
}

static int pause_all(void *unused)
{
	(void)unused;
	return tms_pause(NULL);
}

static int pause_gated(void *unused)
{
	(void)unused;
	return tms_pause_gated(NULL, 600);
}

static int resume_all(void *unused)
{
	(void)unused;
	return tms_resume(NULL);
}

static int resume_again(void *unused)
{
	(void)unused;
	return resume_in_order();
}

static int reset(void *unused)
{
	(void)unused;
	return cudaDeviceReset();
}

static void others(void)
{
	int (*const calls[])(void *) = {pause_all, pause_gated, resume_all};
	begin();
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		uint64_t last = number;
		struct worker *w = give(calls[i], NULL);
		waits(w);
		sim_clear_failures();
		ended(w, 0);
		AWAIT(tms_order_is_over(last));
		if (calls[i] != resume_all) {
			CHECK(stats_say("\"paused_bytes\":16777216"));
			EXPECT(tms_resume(NULL), 0);
		}
		all_is_back();
		EXPECT(tms_pause(NULL), 0);
			stand_behind(1);
		EXPECT(resume_in_order(), 0);
	}
	uint64_t last = number;
	struct worker *w = give(resume_again, NULL);
	waits(w);
	sim_clear_failures();
	ended(w, 0);
	CHECK(number != last && tms_order_is_over(last));
	all_is_back();
}

static int pause_other(void *unused)
{
	(void)unused;
	return tms_pause_gated("other", 600);
}

/* A gated pause of another tag ends while the resume waits for its turn at the gate: there is no order then, and the
 * gate keeps the program from what that pause has taken. */
static void behind(void)
{
	char *other = pausable(SIZE, "other", true);
	fill(other, SIZE, 9);
	EXPECT(add_to(other), 0);
	EXPECT(cudaDeviceSynchronize(), 0);
	make();
	before = fired();
	sim_fail("cuMemcpyDtoHAsync", 1, -2);
	struct worker *pauses = give(pause_other, NULL);
	stands();
	struct worker *resumes = give(resume_again, NULL);
	waits(resumes);
	sim_clear_failures();
	ended(pauses, 0), ended(resumes, 0);
	CHECK(tms_order_is_over(number));
	CHECK(stats_say("\"paused_bytes\":4194304"));
	EXPECT(tms_order_enter(number, 0), 0);
	struct worker *adds = give(add_to, other);
	held_up(adds);
	EXPECT(tms_resume("other"), 0);
	ended(adds, 0);
	all_is_back();
}

static void freed(void)
{
	begin();
	EXPECT(cudaFree(all[2]), 0);
	EXPECT(cudaFree(all[0]), 0);
	sim_clear_failures();
	AWAIT(tms_order_is_over(number));
	CHECK(filled(all[1], SIZE, 1) && filled(all[3], SIZE, 3));
	EXPECT(cudaFree(all[3]), 0);
	EXPECT(cudaFree(all[1]), 0);
}

static void forked(void)
{
	begin();
	pid_t child = fork();
	if (child == 0)
		_exit(tms_order_is_over(number) && tms_order_enter(number, STEPS) == 0 ? 0 : 1);
	EXPECT(code_of(child), 0);
	sim_clear_failures();
	all_is_back();
}

static void was_reset(void)
{
	begin();
	struct worker *w = give(reset, NULL);
	waits(w);
	sim_clear_failures();
	ended(w, 0);
	AWAIT(tms_order_is_over(number));
	EXPECT(cudaFree(pausable(SIZE, "t", true)), 0);
}

static void exits(void)
{
	begin();
	sim_clear_failures();
	exit(0);
}

static void killed(void)
{
	begin();
	raise(SIGKILL);
}

/* The device has work when the resume begins, so all is back when it returns. */
static void busy(void)
{
	sem_t go;
	sem_init(&go, 0, 0);
	make();
	EXPECT(cuLaunchHostFunc(NULL, (void (*)(void *))wait_at, &go), 0);
	ended(give(resume_again, NULL), 0);
	sem_post(&go);
	EXPECT(cudaDeviceSynchronize(), 0);
	CHECK(tms_order_is_over(number));
	all_is_back();
}

/* There is no gate. */
static void not_held(void)
{
	make();
	EXPECT(resume_in_order(), 0);
	EXPECT(tms_last_bytes(), PIECES * SIZE);
	all_is_back();
}

static void arguments(void)
{
	tms_ordered one = {NULL, 0, -1};
	EXPECT(tms_resume_in_order(NULL, 0, NULL, 0, &number), 0);
	FAILS(tms_resume_in_order(NULL, 0, NULL, 1, &number), 1, "order is NULL");
	FAILS(tms_resume_in_order(NULL, 0, NULL, 0, NULL), 1, "number is NULL");
	FAILS(tms_resume_in_order(NULL, -1, NULL, 0, &number), 1, "no number of seconds");
	FAILS(tms_resume_in_order(NULL, 0, &one, 1, &number), 1, "a step is -1");
	tms_order_leave(number);
	CHECK(tms_order_is_over(number));
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	if (argc > 2) {
		storage(argv[2]);
		return 0;
	}
	CHECK(RUN_PART(argv[1], {"steps", steps}, {"leaving", leaving}, {"failing", failing},
		       {"failing and freed", failing_and_freed}, {"others", others}, {"behind", behind}, {"freed", freed},
		       {"forked", forked}, {"failing inside", failing_inside}, {"allocating", allocating},
		       {"ending", ending}, {"handler", handler}, {"destroyed", destroyed}, {"outside", outside},
		       {"reset", was_reset}, {"exits", exits}, {"killed", killed}, {"busy", busy}, {"not held", not_held},
		       {"arguments", arguments}));
	return 0;
}
