/* forward finds the functions: behind this library, or in any libcudart or libcuda that is loaded. It finds all of them
 * at the first call of one. A later first call could come while another thread is inside dlopen, which waits for it or,
 * at the gate, for a resume. */
#define _GNU_SOURCE
#include "forward.h"
#include "symbols.h"
#include "words.h"

#include <stdatomic.h>
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* The C library's own dlsym and dlvsym. Another library may be preloaded that defines them too, and RTLD_NEXT there
 * means what stands behind that library. */
typedef void *find_version(void *handle, const char *name, const char *version);
static find_function *_Atomic find;
static find_version *_Atomic versioned; /* NULL: it has none */

static int look_for_dlsym(struct dl_phdr_info *info, size_t size, void *found)
{
	(void)size;
	(void)found;
	struct symbols symbols;
	if (!read_symbols(info->dlpi_addr, dynamic_of(info), &symbols) || !c_dlsym(&symbols))
		return 0;
	atomic_store(&versioned, (find_version *)defined(&symbols, "dlvsym"));
	atomic_store(&find, (find_function *)c_dlsym(&symbols));
	return 1;
}

_Atomic bool libraries_forked HIDDEN;

HIDDEN void forward_in_child(void)
{
	atomic_store(&libraries_forked, true);
}

/* At load: the first call may come in a child of fork that has no handler, where the loader may wait forever. */
__attribute__((constructor, section(".text.startup"))) static void load(void)
{
	if (!dl_iterate_phdr(look_for_dlsym, NULL))
		atomic_store(&find, dlsym);
}

/* Another library's constructor may come before libtms.so's. */
static find_function *find_function_of_c(void)
{
	if (!atomic_load_explicit(&find, memory_order_relaxed))
		load();
	return atomic_load_explicit(&find, memory_order_relaxed);
}

HIDDEN void *forward_next(const char *name)
{
	void *found = find_function_of_c()(RTLD_NEXT, name); /* no tail call, so that the caller is this library */
	return found;
}

/* The version is that of the library's functions, or NULL where it does not matter. */
static void *find_in(void *library, const char *name, const char *version)
{
	find_version *of_version = atomic_load_explicit(&versioned, memory_order_relaxed);
	return version && of_version ? of_version(library, name, version) : find_function_of_c()(library, name);
}

/* Python loads extensions with RTLD_LOCAL: their libcudart is in no scope that RTLD_NEXT sees. Returns a handle to be
 * closed of the first loaded library of this name that has the function, or NULL. */
static void *open_loaded(const char *library, const char *name, const char *version)
{
	char *path = malloc(PATH_MAX); /* the thread's stack may be small */
	void *opened = NULL;
	for (int i = 0; path && !opened && libraries_each(note_path, &(struct loaded){library, i, path}); i++) {
		opened = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
		if (opened && !find_in(opened, name, version)) {
			dlclose(opened);
			opened = NULL;
		}
	}
	free(path);
	return opened;
}

static void close_loaded(void *library)
{
	if (library)
		dlclose(library); /* which cannot unload it */
}

HIDDEN void *forward_find(const char *name)
{
	void *found = forward_next(name);
	const char *of = name[0] == 'n' ? "libnvidia-ml" : strncmp(name, "cuda", 4) == 0 ? "libcudart" : "libcuda";
	void *library = found ? NULL : open_loaded(of, name, NULL);
	if (library)
		found = find_in(library, name, NULL);
	close_loaded(library);
	return found;
}

/* A function that no library has, after its library was found. */
static int absent(void)
{
	return FORWARD_MISSING;
}

/* The driver's functions. Those that a library in front of it defines may be there earlier than the driver. */
#define X(name, count, ...)                                                                        \
	static int first_##name(PARAMETERS_##count(__VA_ARGS__))                                   \
	{                                                                                          \
		resolve_driver();                                                          \
		int (*found)(__VA_ARGS__) = atomic_load(&forward_##name);                          \
		return found == first_##name ? FORWARD_MISSING : found(PASS_##count);              \
	}                                                                                          \
	HIDDEN int (*_Atomic forward_##name)(__VA_ARGS__) = first_##name;
#define N(since, ...) X(__VA_ARGS__)
static void resolve_driver(void);
FORWARD_DRIVER(X, N)
#undef X

HIDDEN void (*forward_at_first_call)(void);

static bool is_of(const void *function, const char *library)
{
	Dl_info info;
	return dladdr(function, &info) && info.dli_fname && strcmp(file_of(info.dli_fname), library) == 0;
}

/* Returns the function that a call goes on to, or NULL. Where programs find this library's functions by dlsym, another
 * library's dlsym may have one in front of the driver's, and calls go on to that. A second copy of this library is
 * answered like a program, with functions that lead back to it. */
static void *find_in_driver(void *library, const char *name, bool by_dlsym)
{
	void *found = forward_next(name);
	if (!library || (found && !(by_dlsym && is_of_driver(found))))
		return found;
	void *theirs = by_dlsym ? dlsym(library, name) : NULL;
	if (theirs && !is_of(theirs, "libtms.so") && !is_of(theirs, "libtms_reach.so"))
		return theirs;
	return found ? found : find_in(library, name, NULL);
}

static void resolve_driver(void)
{
	static atomic_bool done, begun;
	if (atomic_load(&done))
		return;
	if (forward_at_first_call && !atomic_exchange(&begun, true))
		forward_at_first_call();
	void *library = open_loaded("libcuda", "cuInit", NULL);
	const bool by_dlsym = is_of((void *)dlsym, "libtms_reach.so");
	struct range last = {0};
#define X(name, count, ...)                                                                        \
	if (atomic_load(&forward_##name) == first_##name) {                                        \
		void *found = find_in_driver(library, #name, by_dlsym);                            \
		if (!found && library)                                                             \
			found = (void *)absent;                                                    \
		if (found)                                                                         \
			atomic_store(&forward_##name, (int (*)(__VA_ARGS__))kept_with(found, &last)); \
	}
	FORWARD_DRIVER(X, N)
#undef X
	dlerror(); /* which the program would take for its own */
	if (library)
		atomic_store(&done, true);
	close_loaded(library);
}

/* The runtime's. */
HIDDEN __thread struct forward_caller forward_caller __attribute__((tls_model("initial-exec")));
HIDDEN _Atomic _Bool forward_has_older;

enum {
#define X(name, ...) AT_##name,
	FORWARD_RUNTIME(X) FORWARD_RUNTIME_ASKED(X)
#undef X
		RUNTIME
};

static const char *const version_of[FORWARD_MAJORS] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};

static void forward_set_newest(void);

static void *_Atomic *const by_major[RUNTIME] = {
#define X(name, ...) (void *_Atomic *)forward_by_major_##name,
	FORWARD_RUNTIME(X) FORWARD_RUNTIME_ASKED(X)
#undef X
};
static void *_Atomic *const newest[RUNTIME] = {
#define X(name, ...) (void *_Atomic *)&forward_##name,
	FORWARD_RUNTIME(X) FORWARD_RUNTIME_ASKED(X)
#undef X
};
static const char *const runtime_names[RUNTIME] = {
#define X(name, ...) #name,
	FORWARD_RUNTIME(X) FORWARD_RUNTIME_ASKED(X)
#undef X
};
static _Atomic bool resolved[FORWARD_MAJORS];

/* Returns the function that a caller of the version is bound to in the order of the program's libraries, or NULL: that of
 * a library in front of CUDA's, which has no versions, or that of the libcudart. */
static void *in_order(const char *name, const char *version)
{
	void *found = forward_next(name);
	for (enum forward_major major = FORWARD_NEWEST; found && major < FORWARD_MAJORS; major++)
		if (found == find_in(RTLD_NEXT, name, version_of[major]))
			return find_in(RTLD_NEXT, name, version);
	return found;
}

/* Finds the functions of the major's library, and reports whether that library is loaded. */
static bool resolve_runtime(enum forward_major major)
{
	if (atomic_load(&resolved[major]))
		return true;
	const char *version = version_of[major];
	bool global = find_in(RTLD_NEXT, "cudaRuntimeGetVersion", version) != NULL;
	void *library = global ? NULL : open_loaded("libcudart", "cudaRuntimeGetVersion", version);
	struct range last = {0};
	for (int i = 0; (global || library) && i < RUNTIME; i++) {
		void *found = in_order(runtime_names[i], version);
		if (!found && library)
			found = find_in(library, runtime_names[i], version);
		atomic_store(&by_major[i][major], found ? kept_with(found, &last) : (void *)absent);
	}
	dlerror();
	if (global || library)
		atomic_store(&resolved[major], true);
	close_loaded(library);
	return global || library;
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *count)
{
	(void)size;
	*(unsigned long long *)count = info->dlpi_adds;
	return 1;
}

/* A function of its own, because the caller's stack may be small. */
static __attribute__((noinline)) unsigned long long libraries_so_far(void)
{
	unsigned long long loaded = 0;
	libraries_each(count_loaded, &loaded);
	return loaded;
}

/* Until the newest major is loaded, its callers get another major's function. */
static void *newest_or_other(int at)
{
	static _Atomic unsigned long long looked;
	unsigned long long loaded = libraries_so_far();
	if (atomic_load(&looked) != loaded) {
		if (resolve_runtime(FORWARD_NEWEST)) {
			forward_set_newest();
			return atomic_load(&by_major[at][FORWARD_NEWEST]);
		}
		atomic_store(&looked, loaded);
	}
	for (enum forward_major major = FORWARD_NEWEST + 1; major < FORWARD_MAJORS; major++)
		if (resolve_runtime(major))
			return atomic_load(&by_major[at][major]);
	void *found = kept(forward_find(runtime_names[at]));
	dlerror();
	return found;
}

static void *runtime_function(int at, enum forward_major major)
{
	if (major == FORWARD_NEWEST)
		return newest_or_other(at);
	return resolve_runtime(major) ? atomic_load(&by_major[at][major]) : NULL;
}

#define FIRST(major, name, count, ...)                                                             \
	static int first_of_##major##_##name(PARAMETERS_##count(__VA_ARGS__))                      \
	{                                                                                          \
		int (*found)(__VA_ARGS__) = (int (*)(__VA_ARGS__))runtime_function(AT_##name, major); \
		int code = found ? found(PASS_##count) : FORWARD_MISSING;                          \
		resolve_driver(); /* which libcudart has loaded by now */                          \
		return code;                                                                       \
	}
#define X(name, count, ...)                                                                        \
	FIRST(FORWARD_NEWEST, name, count, __VA_ARGS__)                                            \
	FIRST(FORWARD_12, name, count, __VA_ARGS__)                                                \
	FIRST(FORWARD_11, name, count, __VA_ARGS__)                                                \
	HIDDEN int (*_Atomic forward_by_major_##name[FORWARD_MAJORS])(__VA_ARGS__) = {             \
		first_of_FORWARD_NEWEST_##name, first_of_FORWARD_12_##name, first_of_FORWARD_11_##name}; \
	static int of_caller_##name(PARAMETERS_##count(__VA_ARGS__))                               \
	{                                                                                          \
		return forward_by_major_##name[forward_caller.major](PASS_##count);                \
	}                                                                                          \
	HIDDEN int (*_Atomic forward_##name)(__VA_ARGS__) = of_caller_##name;
FORWARD_RUNTIME(X)
FORWARD_RUNTIME_ASKED(X)
#undef X
static void *const of_caller[RUNTIME] = {
#define X(name, ...) (void *)of_caller_##name,
	FORWARD_RUNTIME(X) FORWARD_RUNTIME_ASKED(X)
#undef X
};

/* While no caller of an older major has been seen, the newest's functions are called without a look at the caller. The
 * thread that sees one and the thread that is here both write first and read then, so one of them sees the other. */
static void forward_set_newest(void)
{
	for (int i = 0; i < RUNTIME; i++) {
		atomic_store(newest[i], atomic_load(&by_major[i][FORWARD_NEWEST]));
		if (atomic_load(&forward_has_older))
			atomic_store(newest[i], of_caller[i]);
	}
}

HIDDEN void forward_see_older(void)
{
	atomic_store(&forward_has_older, true);
	for (int i = 0; i < RUNTIME; i++)
		atomic_store(newest[i], of_caller[i]);
}

static int is_of_major(struct dl_phdr_info *info, size_t size, void *version)
{
	(void)size;
	const char *file = file_of(info->dlpi_name);
	return is_library(file, "libcudart") && strstr(file, strchr(version, '.')) != NULL;
}

/* Reports whether a libcudart of that version is loaded: without it there is no need to ask the loader. */
static bool has_major(enum forward_major major)
{
	return libraries_each(is_of_major, (void *)version_of[major]);
}

HIDDEN void forward_resolve(void)
{
	resolve_driver();
	if (has_major(FORWARD_NEWEST) && resolve_runtime(FORWARD_NEWEST))
		forward_set_newest();
	for (enum forward_major major = FORWARD_NEWEST + 1; major < FORWARD_MAJORS; major++)
		if (has_major(major))
			resolve_runtime(major);
}

struct driver {
	struct symbols symbols;
	bool found, hooked;
};

static int look_for_driver(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct driver *driver = data;
	struct symbols symbols;
	const char *file = file_of(info->dlpi_name);
	if (!read_symbols(info->dlpi_addr, dynamic_of(info), &symbols))
		return 0;
	if (!driver->found && is_library(file, "libcuda") && defined(&symbols, "cuInit")) {
		driver->symbols = symbols;
		driver->found = true;
	}
	driver->hooked |= strcmp(file, "libtms_reach.so") != 0 && defined(&symbols, "dlsym") && !c_dlsym(&symbols);
	return 0;
}

HIDDEN void *forward_in_driver(const char *name)
{
	static struct driver driver; /* which stays loaded */
	if (!driver.found)
		libraries_each(look_for_driver, &driver);
	return driver.found && !driver.hooked ? defined(&driver.symbols, name) : NULL;
}

/* Libraries that have asked for the last error, or reset a device. An entry is complete before the count includes it,
 * and stays. A library at the addresses of an unloaded one is taken for that. */
enum { LIBRARIES = 256 };
static struct library {
	struct range range;
	const char *needed; /* its libcudart, or NULL */
	struct forward_copy copy;
} libraries[LIBRARIES];
static _Atomic int known;
static atomic_flag noting = ATOMIC_FLAG_INIT;
static __thread const struct library *latest __attribute__((tls_model("initial-exec")));

static int look_at_caller(struct dl_phdr_info *info, size_t size, void *data)
{
	struct library *library = data;
	if (!look_around(info, size, &library->range))
		return 0;
	const ElfW(Dyn) *entry = dynamic_of(info);
	struct symbols symbols;
	if (!read_symbols(info->dlpi_addr, entry, &symbols))
		return 1;
	for (; entry->d_tag != DT_NULL && !library->needed; entry++)
		if (entry->d_tag == DT_NEEDED && is_library(symbols.names + entry->d_un.d_val, "libcudart"))
			library->needed = symbols.names + entry->d_un.d_val;
	return 1;
}

static int look_for_copy(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct library *library = data;
	struct symbols symbols;
	if (strcmp(file_of(info->dlpi_name), library->needed) != 0 ||
	    !read_symbols(info->dlpi_addr, dynamic_of(info), &symbols))
		return 0;
	library->copy.get = (int (*)(void))defined(&symbols, "cudaGetLastError");
	library->copy.peek = (int (*)(void))defined(&symbols, "cudaPeekAtLastError");
	library->copy.reset = (int (*)(void))defined(&symbols, "cudaDeviceReset");
	return 1;
}

struct bound {
	struct range range;
	bool copy;
};

static int look_whether_copy(struct dl_phdr_info *info, size_t size, void *data)
{
	struct bound *bound = data;
	if (!look_around(info, size, &bound->range))
		return 0;
	bound->copy = is_library(file_of(info->dlpi_name), "libcudart");
	return 1;
}

/* Where calls go to a library in front of CUDA's, or to the caller's own, there is nothing to tell apart. */
static bool goes_elsewhere(const struct forward_copy *copy)
{
	struct bound bound = {.range.address = (uintptr_t)atomic_load(
				      &forward_by_major_cudaGetLastError[forward_caller.major])};
	libraries_each(look_whether_copy, &bound);
	return bound.copy && !within((const void *)copy->get, &bound.range);
}

static const struct library *note(const void *caller)
{
	int at = atomic_load(&known);
	if (at == LIBRARIES || atomic_flag_test_and_set(&noting))
		return NULL;
	struct library *library = &libraries[at = atomic_load(&known)];
	if (at == LIBRARIES) {
		atomic_flag_clear(&noting);
		return NULL;
	}
	*library = (struct library){.range.address = (uintptr_t)caller};
	libraries_each(look_at_caller, library);
	if (library->needed)
		libraries_each(look_for_copy, library);
	if (!library->copy.get || !library->copy.peek || !library->copy.reset || !goes_elsewhere(&library->copy))
		library->copy.get = NULL;
	kept((void *)library->copy.get);
	bool found = library->range.end != 0;
	if (found)
		atomic_store(&known, at + 1);
	atomic_flag_clear(&noting);
	return found ? library : NULL;
}

static const struct library *library_of(const void *caller)
{
	for (int i = 0; i < atomic_load_explicit(&known, memory_order_acquire); i++)
		if (within(caller, &libraries[i].range))
			return &libraries[i];
	return note(caller);
}

HIDDEN const struct forward_copy *forward_copy_of(const void *caller)
{
	const struct library *library = latest;
	if (library && within(caller, &library->range))
		return library->copy.get ? &library->copy : NULL;
	if (!atomic_load_explicit(&resolved[forward_caller.major], memory_order_acquire))
		return NULL;
	library = latest = library_of(caller);
	return library && library->copy.get ? &library->copy : NULL;
}
