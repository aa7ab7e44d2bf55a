/* Random operations of several threads on two devices, while calls of the driver fail and limits are lowered. After
 * every resume the contents are compared, and in the end nothing is left. One thread repeats a seed's operations.
 * Called as: chaos SEED SECONDS THREADS DIRECTORY [address-space] The address space is limited only on request. */
#include "host.h"

#include <stdarg.h>

enum { THREADS_MOST = 16, HELD = 12, DEVICES = 2, TRIES = 100 };
enum { OUT_OF_MEMORY = 2, CAPTURING = 900 };

enum kind { NONE, HOST, INCREMENTAL, DISK, PEER, KINDS };
static const char *const kind_names[] = {"none", "host", "incremental", "disk", "peer"};

struct piece {
	unsigned char *address; /* NULL: there is none */
	size_t size;
	unsigned seed;
	enum kind kind;
	bool paused;
};

static struct worker {
	struct random random;
	int number;
	char tag[16];
	void *stream[DEVICES];
	struct piece held[HELD];
	long operation;
	const char *doing;
	char planned[256];
} workers[THREADS_MOST];
static int worker_count;
static unsigned long seed;
static struct timespec end;
static _Atomic long done[16], refused;
static int descriptors_used, statm;
static bool address_space_limited;

/* Operations on the memory of all threads go one at a time: pause and resume of all, and captures. */
static pthread_rwlock_t everything = PTHREAD_RWLOCK_INITIALIZER;

static void __attribute__((noreturn, format(printf, 2, 3))) broken(struct worker *w, const char *format, ...)
{
	char text[512], words[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	snprintf(words, sizeof words, "%s", tms_last_error());
	fprintf(stderr, "chaos: seed %lu of %d threads, thread %d, operation %ld (%s): %s; planned: %s; last error: %s\n",
		seed, worker_count, w->number, w->operation, w->doing, text, w->planned, words);
	_exit(1);
}

/* Makes calls of the driver fail, in whichever thread they come. */
static void plan_failures(struct worker *w)
{
	static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
		"cuMemAddressReserve", "cuMemAddressFree", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync",
		"cuMemcpyAsync", "cuMemHostRegister", "cuMemHostUnregister", "cuMemHostAlloc", "cuMemHostGetDevicePointer",
		"cuCtxRecordEvent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuDevicePrimaryCtxRetain",
		"cuDeviceGetAttribute", "cuStreamSynchronize", "cuStreamCreate", "cuStreamDestroy", "cuStreamWaitEvent",
		"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuMemGetInfo", "cuLaunchKernel",
		"cuMemsetD8Async", "cuMemsetD32Async"};
	static const int codes[] = {2, 1, 999, 304, 719};
	w->planned[0] = 0;
	for (unsigned left = draw(&w->random, 3) ? draw(&w->random, 7) : 0; left > 0; left--) {
		const char *call = calls[draw(&w->random, sizeof calls / sizeof *calls)];
		int nth = 1 + (int)draw(&w->random, 4), code = codes[draw(&w->random, sizeof codes / sizeof *codes)];
		sim_fail(call, nth, code);
		size_t length = strlen(w->planned);
		snprintf(w->planned + length, sizeof w->planned - length, "%s:%d:%d ", call, nth, code);
	}
}

/* Limits all threads to little more than what is in use. */
static void lower_limits(struct worker *w)
{
	limit_to(RLIMIT_NOFILE, (rlim_t)descriptors_used + draw(&w->random, 4));
	if (address_space_limited) {
		unsigned long pages = 0;
		char text[64] = "";
		ssize_t length = pread(statm, text, sizeof text - 1, 0);
		CHECK(length > 0 && sscanf(text, "%lu", &pages) == 1);
		limit_to(RLIMIT_AS, (pages << 12) + draw(&w->random, 64 * (unsigned)MIB));
	}
}

static void raise_limits(void)
{
	limit_to(RLIMIT_NOFILE, RLIM_INFINITY);
	if (address_space_limited)
		limit_to(RLIMIT_AS, RLIM_INFINITY);
}

/* Removes every obstacle, except obstacles that other threads plan. */
static void clear(void)
{
	sim_clear_failures();
	raise_limits();
}

/* A call that failed works when it is tried again: at once with one thread, beside others as soon as they let it. */
#define AGAIN(w, expression, enough)                                                                         \
	({                                                                                                   \
		int code_ = (expression);                                                                    \
		if (code_ != 0)                                                                              \
			atomic_fetch_add(&refused, 1);                                                       \
		for (int try_ = 0; code_ != 0 && code_ != (enough); try_++) {                                \
			if (try_ > 0 && (worker_count == 1 || try_ == TRIES))                                \
				broken(w, #expression " gives %d, again and again", code_);                  \
			clear();                                                                             \
			code_ = (expression);                                                                \
		}                                                                                            \
		clear();                                                                                     \
		code_;                                                                                       \
	})

static unsigned word_of(struct piece *p, size_t i)
{
	return (unsigned)(i * 2654435761u) ^ p->seed;
}

static unsigned *room_for(struct worker *w, struct piece *p)
{
	unsigned *words = malloc(p->size);
	if (!words) {
		raise_limits();
		words = malloc(p->size);
	}
	if (!words)
		broken(w, "no host memory");
	return words;
}

static void write_contents(struct worker *w, struct piece *p)
{
	p->seed = draw(&w->random, 1u << 30);
	unsigned *words = room_for(w, p);
	for (size_t i = 0; i < p->size / 4; i++)
		words[i] = word_of(p, i);
	AGAIN(w, cudaMemcpy(p->address, words, p->size, 1), 0);
	free(words);
}

static void compare_contents(struct worker *w, struct piece *p)
{
	unsigned *words = room_for(w, p);
	AGAIN(w, cudaMemcpy(words, p->address, p->size, 2), 0);
	size_t different = 0, first = 0;
	for (size_t i = p->size / 4; i-- > 0;)
		if (words[i] != word_of(p, i)) {
			different++;
			first = i;
		}
	if (different)
		broken(w, "of %zu words at %p (backup %s) %zu differ, the first at byte %zu: %08x, not %08x", p->size / 4,
		       (void *)p->address, kind_names[p->kind], different, 4 * first, words[first], word_of(p, first));
	free(words);
}

static struct piece *any_piece(struct worker *w)
{
	return &w->held[draw(&w->random, HELD)];
}

static void settings(struct worker *w, enum kind kind)
{
	bool on = kind != KINDS;
	tms_set_current_tag(on ? w->tag : NULL);
	tms_set_backup(kind == DISK ? "disk" : kind == PEER ? "peer"
					   : kind == HOST || kind == INCREMENTAL ? "host" : "none");
	tms_set_enable_incremental_backup(kind == INCREMENTAL);
	tms_set_interesting_region(on);
}

static void no_overlap(struct worker *w, struct piece *p)
{
	for (int i = 0; i < HELD; i++) {
		struct piece *other = &w->held[i];
		if (other != p && other->address && p->address < other->address + other->size &&
		    other->address < p->address + p->size)
			broken(w, "%p (%zu bytes) lies in %p (%zu bytes)", (void *)p->address, p->size, (void *)other->address,
			       other->size);
	}
}

/* Returns NULL if the piece is in use or the allocation is refused. */
static struct piece *allocate_empty(struct worker *w)
{
	struct piece *p = any_piece(w);
	if (p->address)
		return NULL;
	static const unsigned most[] = {4096, 64 << 10, MIB / 2, 3 * MIB};
	size_t size = 4 * (1 + draw(&w->random, most[draw(&w->random, 4)] / 4));
	*p = (struct piece){.size = size, .kind = draw(&w->random, KINDS)};
	void *address = NULL;
	settings(w, p->kind);
	int code = cudaMalloc(&address, size);
	settings(w, KINDS);
	clear();
	if (code != 0) {
		atomic_fetch_add(&refused, 1);
		return NULL;
	}
	p->address = address;
	no_overlap(w, p);
	return p;
}

static void allocate(struct worker *w)
{
	struct piece *p = allocate_empty(w);
	if (p)
		write_contents(w, p);
}

static void release(struct worker *w)
{
	struct piece *p = any_piece(w);
	if (!p->address)
		return;
	if (draw(&w->random, 3) == 0) {
		int device = 0;
		EXPECT(cudaGetDevice(&device), 0);
		AGAIN(w, cudaFreeAsync(p->address, w->stream[device]), 0);
	} else {
		int code = cudaFree(p->address);
		clear();
		if (code != 0 && !p->paused)
			compare_contents(w, p); /* nothing has changed */
		if (code != 0)
			AGAIN(w, cudaFree(p->address), 0);
	}
	p->address = NULL;
}

static void are_paused(struct worker *w)
{
	for (int i = 0; i < HELD; i++)
		w->held[i].paused = true;
}

static void are_active(struct worker *w)
{
	for (int i = 0; i < HELD; i++) {
		struct piece *p = &w->held[i];
		if (p->address && p->paused && p->kind == NONE)
			write_contents(w, p);
		p->paused = false;
	}
}

static void compare_active(struct worker *w)
{
	for (int i = 0; i < HELD; i++)
		if (w->held[i].address && !w->held[i].paused)
			compare_contents(w, &w->held[i]);
}

static void pause_own(struct worker *w)
{
	AGAIN(w, tms_pause(w->tag), 0);
	are_paused(w);
}

static void resume_own(struct worker *w)
{
	if (AGAIN(w, tms_resume(w->tag), OUT_OF_MEMORY) == 0)
		are_active(w);
	compare_active(w);
}

static void pause_all(struct worker *w)
{
	AGAIN(w, tms_pause(NULL), 0);
	for (int i = 0; i < worker_count; i++)
		are_paused(&workers[i]);
}

static void resume_all(struct worker *w)
{
	int code = AGAIN(w, tms_resume(NULL), OUT_OF_MEMORY);
	for (int i = 0; i < worker_count; i++) {
		if (code == 0)
			are_active(&workers[i]);
		compare_active(&workers[i]);
	}
}

static void prepare(struct worker *w)
{
	if (tms_prepare(w->tag, draw(&w->random, 2)) != 0)
		atomic_fetch_add(&refused, 1);
	clear();
}

static void trim(struct worker *w)
{
	AGAIN(w, tms_trim(), 0);
}

static void retain(struct worker *w)
{
	tms_set_retain_cpu_backup(draw(&w->random, 2));
}

static void change(struct worker *w)
{
	struct piece *p = any_piece(w);
	if (p->address && !p->paused)
		write_contents(w, p);
}

static void other_device(struct worker *w)
{
	AGAIN(w, cudaSetDevice((int)draw(&w->random, DEVICES)), 0);
}

static void use_a_pool(struct worker *w)
{
	static const struct {
		const char *kind, *options;
	} pools[] = {{"naive", NULL}, {"freelist", "buffer=2MiB"}, {"buddy", "capacity=4MiB"}, {"slab", "capacity=4MiB"},
		     {"caching", NULL}, {"bfc", NULL}, {"paddle", "max_chunk=4MiB"}};
	unsigned which = draw(&w->random, sizeof pools / sizeof *pools);
	enum kind kind = draw(&w->random, KINDS);
	tms_pool *pool = NULL;
	settings(w, kind);
	int code = tms_pool_create(&pool, pools[which].kind, pools[which].options, -1);
	settings(w, KINDS);
	for (unsigned left = draw(&w->random, 8); code == 0 && left > 0; left--) {
		struct piece p = {.size = 256 * (1 + draw(&w->random, 4000)), .kind = kind};
		void *address = NULL;
		if (tms_pool_malloc(pool, &address, p.size, NULL) != 0)
			continue;
		p.address = address;
		no_overlap(w, &p);
		write_contents(w, &p);
		AGAIN(w, tms_pause(w->tag), 0);
		are_paused(w);
		if (AGAIN(w, tms_resume(w->tag), OUT_OF_MEMORY) != 0)
			break; /* the pool hands out paused memory now */
		are_active(w);
		if (p.kind != NONE)
			compare_contents(w, &p);
		if (draw(&w->random, 2))
			AGAIN(w, tms_pool_free(pool, address), 0);
		plan_failures(w);
	}
	clear();
	if (code == 0)
		AGAIN(w, tms_pool_destroy(pool), 0);
}

/* Memory comes and goes while a stream is captured; a pause is refused. */
static void capture(struct worker *w)
{
	int device = 0;
	void *graph = NULL;
	clear();
	EXPECT(cudaGetDevice(&device), 0);
	EXPECT(cudaStreamBeginCapture(w->stream[device], 2), 0);
	plan_failures(w);
	struct piece *made = allocate_empty(w), *freed = any_piece(w);
	plan_failures(w);
	if (freed->address && freed != made) {
		AGAIN(w, cudaFree(freed->address), 0);
		freed->address = NULL;
	}
	int code = tms_pause(NULL);
	clear();
	if (code != CAPTURING)
		broken(w, "a pause beside a capture gives %d", code);
	EXPECT(cudaStreamEndCapture(w->stream[device], &graph), 0);
	EXPECT(cudaGraphDestroy(graph), 0);
	if (made)
		write_contents(w, made);
}

static const struct operation {
	const char *name;
	void (*run)(struct worker *w);
	unsigned often;
	bool alone; /* with everything held */
} operations[] = {
	{"allocate", allocate, 24, false},    {"release", release, 12, false},
	{"pause", pause_own, 10, false},      {"resume", resume_own, 14, false},
	{"pause of all", pause_all, 4, true}, {"resume of all", resume_all, 8, true},
	{"prepare", prepare, 3, false},	      {"trim", trim, 2, false},
	{"retain", retain, 1, false},	      {"change", change, 6, false},
	{"device", other_device, 6, false},   {"pool", use_a_pool, 3, false},
	{"capture", capture, 2, true},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void operate(struct worker *w)
{
	unsigned all = 0, chosen = 0;
	for (int i = 0; i < OPERATIONS; i++)
		all += operations[i].often;
	unsigned number = draw(&w->random, all);
	while (number >= operations[chosen].often)
		number -= operations[chosen++].often;
	w->operation++;
	w->doing = operations[chosen].name;
	if (operations[chosen].alone)
		pthread_rwlock_wrlock(&everything);
	else
		pthread_rwlock_rdlock(&everything);
	plan_failures(w);
	if (draw(&w->random, 8) == 0)
		lower_limits(w);
	operations[chosen].run(w);
	clear();
	pthread_rwlock_unlock(&everything);
	atomic_fetch_add(&done[chosen], 1);
}

static bool late(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec);
}

static pthread_barrier_t all_started; /* else the limits of the first keep the last from starting */

static void *work(void *argument)
{
	struct worker *w = argument;
	pthread_barrier_wait(&all_started);
	for (int device = DEVICES - 1; device >= 0; device--) {
		AGAIN(w, cudaSetDevice(device), 0);
		AGAIN(w, cudaStreamCreate(&w->stream[device]), 0);
	}
	while (!late())
		operate(w);
	for (int device = 0; device < DEVICES; device++)
		AGAIN(w, cudaStreamSynchronize(w->stream[device]), 0);
	return NULL;
}

/* Compares the contents of what is left, a tag at a time, and frees it. */
static void finish(struct worker *w)
{
	w->doing = "end";
	resume_own(w);
	for (int i = 0; i < HELD; i++)
		if (w->held[i].address)
			EXPECT(cudaFree(w->held[i].address), 0);
	for (int device = 0; device < DEVICES; device++)
		EXPECT(cudaStreamDestroy(w->stream[device]), 0);
}

static void nothing_is_left(struct worker *w)
{
	EXPECT(tms_pause(NULL), 0); /* finishes first what frees left undone */
	tms_set_retain_cpu_backup(false);
	EXPECT(tms_trim(), 0);
	const char *what[] = {"handles", "mappings", "allocations", "registrations", "host_bytes", "used:0", "used:1"};
	for (size_t i = 0; i < sizeof what / sizeof *what; i++)
		if (sim_stat(what[i]) != 0) {
			fprintf(stderr, "%s\n", stats());
			broken(w, "%s is %llu in the end", what[i], (unsigned long long)sim_stat(what[i]));
		}
}

int main(int argc, char **argv)
{
	CHECK(argc == 5 || (argc == 6 && strcmp(argv[5], "address-space") == 0));
	address_space_limited = argc == 6;
	statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	CHECK(statm >= 0);
	seed = strtoul(argv[1], NULL, 10);
	worker_count = atoi(argv[3]);
	CHECK(worker_count > 0 && worker_count <= THREADS_MOST);
	tms_set_disk_backup_dir(argv[4]);
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += atol(argv[2]);
	printf("seed %lu\n", seed);
	fflush(stdout);

	EXPECT(cudaFree(pausable(MIB, "first", true)), 0);
	descriptors_used = descriptors();
	pthread_t thread[THREADS_MOST];
	for (int i = 0; i < worker_count; i++) {
		struct worker *w = &workers[i];
		w->number = i;
		w->doing = "start";
		w->random.state = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i;
		snprintf(w->tag, sizeof w->tag, "tag %d", i);
	}
	pthread_barrier_init(&all_started, NULL, (unsigned)worker_count);
	for (int i = 0; i < worker_count; i++)
		start(&thread[i], work, &workers[i]);
	join_all(thread, worker_count);
	for (int i = 0; i < worker_count; i++)
		finish(&workers[i]);
	nothing_is_left(&workers[0]);

	for (int i = 0; i < OPERATIONS; i++)
		printf("%s %ld, ", operations[i].name, done[i]);
	printf("refused %ld, failures %llu\n", refused,
	       (unsigned long long)((uint64_t(*)(void))simulator("cudasim_failures_fired"))());
	return 0;
}
