/* A copy or fill that names memory which the program has paused itself is refused, whatever tells its direction, and
 * the processor does not read the addresses. argument: the part; "held" needs a gate. */
#include "host.h"

#include "../../forward/table.h"

int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cuMemcpy(uintptr_t, uintptr_t, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);

enum { SIZE = 4 * MIB, INVALID = 1, DEFAULT = 4, WORDS = 9, PATIENCE = 60, MISSING = 302 };

/* CUDA_MEMCPY2D, CUDA_MEMCPY3D, cudaMemcpy3DParms, cudaMemcpy3DPeerParms, CUDA_MEMCPY3D_BATCH_OP, CUgraphNodeParams. */
struct rows {
	size_t x, y;
	int type;
	const void *host, *device;
	void *array;
	size_t pitch;
};
struct layers {
	size_t x, y, z, level;
	int type;
	const void *host, *device;
	void *array, *context;
	size_t pitch, height;
};
struct pitched {
	void *array;
	size_t position[3];
	const void *pointer;
	size_t pitch, width, height;
};
struct pitched_peer {
	struct pitched of;
	int device;
};
struct operand {
	int type;
	const void *pointer;
	size_t more[3];
};
struct rows_copy {
	struct rows from, to;
	size_t width, height;
};
struct layers_copy {
	struct layers from, to;
	size_t width, height, depth;
};
struct pitched_copy {
	struct pitched from, to;
	size_t extent[3];
	int kind;
};
struct peer_copy {
	struct pitched_peer from, to;
	size_t extent[3];
};
struct operation {
	struct operand from, to;
	size_t extent[3];
	int order;
	unsigned flags;
};
struct node {
	int type, reserved[3], flags, unused;
	void *context;
	union {
		struct layers_copy layers;
		struct pitched_copy pitched;
	};
};
_Static_assert(sizeof(struct rows_copy) == 128 && sizeof(struct layers_copy) == 200, "as in cuda.h");
_Static_assert(sizeof(struct pitched_copy) == 160 && sizeof(struct operation) == 112, "as in driver_types.h");

static char host[64], *paused, *plain;

/* The arguments that the table's words for a function mean: the first address is paused, or the second. */
static union argument {
	struct rows_copy rows;
	struct layers_copy layers;
	struct pitched_copy pitched;
	struct peer_copy peers;
	struct operation operations[2];
	struct node node;
	const void *list[2];
} arguments[WORDS];

static uintptr_t filled_in(int at, char kind, bool first)
{
	union argument *a = &arguments[at];
	const void *from = first ? paused : plain, *to = first ? host : paused;
	memset(a, 0, sizeof *a);
	switch (kind) {
	case 'R':
		a->rows = (struct rows_copy){{.type = DEFAULT, .device = from}, {.type = 1, .host = to}, 8, 1};
		return (uintptr_t)a;
	case 'Y':
		a->layers = (struct layers_copy){{.type = DEFAULT, .device = from}, {.type = 1, .host = to}, 8, 1, 1};
		return (uintptr_t)a;
	case 'P':
		a->pitched = (struct pitched_copy){{.pointer = from}, {.pointer = to}, {8, 1, 1}, DEFAULT};
		return (uintptr_t)a;
	case 'Q':
		a->peers = (struct peer_copy){{{.pointer = from}, 0}, {{.pointer = to}, 0}, {8, 1, 1}};
		return (uintptr_t)a;
	case 'O':
		for (int i = 0; i < 2; i++) /* the second is the one */
			a->operations[i] = (struct operation){{1, i ? from : plain, {0}}, {1, i ? to : host, {0}}, {8, 1, 1}, 0, 0};
		return (uintptr_t)a;
	case 'N':
		a->node.type = 1;
		a->node.layers = (struct layers_copy){{.type = 2, .device = from}, {.type = 1, .host = to}, 8, 1, 1};
		return (uintptr_t)a;
	case 'M':
		a->node.type = 1;
		a->node.pitched = (struct pitched_copy){{.pointer = from}, {.pointer = to}, {8, 1, 1}, DEFAULT};
		return (uintptr_t)a;
	default:
		return 0;
	}
}

/* Each address in turn is paused, and the others are not. */
static struct row {
	const char *name;
	int words;
	const char *found; /* the expression in the table */
} rows[] = {
#define ROW(kind, since, symbol, words, found) {#symbol, words, #found},
	COPIES(ROW, ROW, X, N)
};

static int call(void *function, const uintptr_t *w)
{
	typedef int all(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
	return ((all *)function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]);
}

static void refused_in(const struct row *row, const uintptr_t *words)
{
	char start[80];
	bool runtime = strncmp(row->name, "cuda", 4) == 0;
	void *function = dlsym(RTLD_DEFAULT, row->name);
	CHECK(function);
	int code = call(function, words);
	snprintf(start, sizeof start, "%s was refused (1): 0x", row->name);
	if (code != INVALID || strncmp(tms_last_error(), start, strlen(start)) != 0 ||
	    !strstr(tms_last_error(), " is memory of tag \"t\", which is paused; resume it first")) {
		fprintf(stderr, "%s: %d, %s\n", row->name, code, tms_last_error());
		_exit(1);
	}
	EXPECT(cudaGetLastError(), runtime ? INVALID : 0);
}

/* Every function of the table. */
static void refused(void)
{
	int lists = 0;
	EXPECT(tms_pause("t"), 0);
	for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
		for (const char *at = strchr(row->found, '('); at; at = strchr(at + 1, '(')) {
			static const struct {
				const char *word;
				char kind;
			} kinds[] = {{"ROWS", 'R'}, {"LAYERS", 'Y'}, {"PITCHED", 'P'}, {"PITCHED_PEER", 'Q'},
				     {"OPERATIONS", 'O'}, {"NODE", 'N'}, {"RUNTIME_NODE", 'M'}};
			const char *word = at;
			while (word > row->found && word[-1] != ' ')
				word--;
			uintptr_t words[WORDS] = {0};
			const int position = at[1] - 'a';
			if (strncmp(word, "AT(", 3) == 0) {
				words[position] = (uintptr_t)paused + SIZE - 1;
				refused_in(row, words);
				continue;
			}
			if (strncmp(word, "LIST(", 5) == 0) {
				words[position] = (uintptr_t)(const void *[]){plain, paused};
				words[3] = 2;
				refused_in(row, words);
				lists++;
				continue;
			}
			char kind = 0;
			for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
				if (strlen(kinds[i].word) == (size_t)(at - word) &&
				    strncmp(kinds[i].word, word, strlen(kinds[i].word)) == 0)
					kind = kinds[i].kind;
			CHECK(kind);
			for (int first = 0; first < 2; first++) {
				if (at[2] == ',' && at[4] == 'a')
					words[0] = 2;
				words[position] = filled_in(position, kind, first);
				if (kind == 'O' && words[0] != 2) /* a single one */
					words[position] += sizeof(struct operation);
				refused_in(row, words);
			}
		}
	}
	CHECK(lists >= 8);
	EXPECT(tms_resume("t"), 0);
}

/* Memory that is not paused goes to CUDA, also where only the address tells it from paused memory. */
static void passed(void)
{
	EXPECT(tms_pause("t"), 0);
	EXPECT(cudaMemcpy(host, plain, sizeof host, DEFAULT), 0);
	EXPECT(cudaMemcpy(plain, host, sizeof host, DEFAULT), 0);
	EXPECT(cudaMemcpy(NULL, NULL, 0, DEFAULT), 0);
	EXPECT(cuMemcpy((uintptr_t)host, (uintptr_t)plain, sizeof host), 0);
	EXPECT(cudaMemcpy(host, paused, sizeof host, 2), INVALID);
	EXPECT(cudaPeekAtLastError(), INVALID);
	EXPECT(cudaGetLastError(), INVALID);
	EXPECT(tms_resume("t"), 0);
	EXPECT(cudaMemcpy(host, paused, sizeof host, DEFAULT), 0);
	EXPECT(host[7], 5);
	EXPECT(cudaMemcpy2D(host, 8, paused, 512, 8, 8, DEFAULT), 0);
	EXPECT(cuMemcpy((uintptr_t)host, (uintptr_t)paused, sizeof host), 0);
	EXPECT(tms_pause("t"), 0);
	EXPECT(cudaFree(paused), 0);
	EXPECT(cudaMemcpy(plain, host, sizeof host, DEFAULT), 0);
}

static _Atomic pid_t copier;
static int copied;

static void *copy(void *source)
{
	copier = (pid_t)syscall(SYS_gettid);
	copied = cudaMemcpy(host, source, sizeof host, DEFAULT);
	return NULL;
}

/* A pause from outside holds the call, even of memory that the program has paused itself before. */
static void held(void)
{
	pthread_t thread;
	for (int both = 0; both < 2; both++) {
		copier = 0;
		EXPECT(tms_pause("t"), 0);
		EXPECT(tms_pause_gated("other", PATIENCE), 0);
		start(&thread, copy, paused);
		AWAIT(copier && in_call(copier, SYS_futex));
		EXPECT(tms_resume(both ? NULL : "other"), 0);
		join(thread);
		EXPECT(copied, both ? 0 : INVALID);
		EXPECT(tms_resume(NULL), 0);
	}
	copier = 0;
	EXPECT(tms_pause_gated("t", PATIENCE), 0);
	start(&thread, copy, paused);
	AWAIT(copier && in_call(copier, SYS_futex));
	EXPECT(tms_resume(NULL), 0);
	join(thread);
	EXPECT(copied, 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	paused = pausable(SIZE, "t", true);
	pausable(SIZE, "other", true);
	EXPECT(cudaMemset(paused, 5, SIZE), 0);
	EXPECT(cudaMalloc((void **)&plain, SIZE), 0);
	CHECK(RUN_PART(argv[1], {"refused", refused}, {"passed", passed}, {"held", held}));
	return 0;
}
