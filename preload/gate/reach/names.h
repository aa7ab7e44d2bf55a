/* names finds the function that a program means when it asks CUDA for one by name and version, among those that a
 * library here interposes. */
#ifndef REACH_NAMES_H
#define REACH_NAMES_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct named {
	const char *symbol; /* the name, "_v" and a digit or nothing, "_ptsz" or "_ptds" or nothing */
	int since;	    /* the first CUDA version that has it */
	const void *ours;
};

enum { PER_THREAD = 2 }; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

static inline size_t name_length(const char *symbol)
{
	size_t length = strlen(symbol);
	if (length > 5 && (strcmp(symbol + length - 5, "_ptsz") == 0 || strcmp(symbol + length - 5, "_ptds") == 0))
		length -= 5;
	if (length > 3 && symbol[length - 3] == '_' && symbol[length - 2] == 'v')
		length -= 3;
	return length;
}

/* Reports whether the symbol has this name; the name is the first length characters of another symbol, or all of it. */
static inline bool has_name(const char *symbol, const char *name, size_t length)
{
	return strncmp(symbol, name, length) == 0 && name_length(symbol) == length;
}

/* Returns the latest function that a version of CUDA has, for per-thread streams where there is one for those; NULL:
 * none. */
static inline const struct named *latest_of(const struct named *first, size_t count, const char *name, int version,
					    bool per_thread)
{
	const struct named *best = NULL, *other = NULL;
	for (const struct named *n = first; n < first + count; n++) {
		if (n->since > version || !has_name(n->symbol, name, strlen(name)))
			continue;
		const struct named **of = (strstr(n->symbol, "_pt") != NULL) == per_thread ? &best : &other;
		if (!*of || n->since > (*of)->since)
			*of = n;
	}
	return best || !per_thread ? best : other;
}

/* Reports whether the driver has a later function of the name, with a signature that is not known here. Its array leaves
 * the stack before the caller goes on. */
static __attribute__((noinline)) bool has_later(const struct named *first, size_t count, const struct named *of,
						void *(*in_driver)(const char *symbol))
{
	const char *rest = of->symbol + name_length(of->symbol);
	const int version = rest[0] == '_' && rest[1] == 'v' ? rest[2] - '0' : 1;
	char later[96];
	snprintf(later, sizeof later, "%.*s_v%d%s", (int)name_length(of->symbol), of->symbol, version + 1,
		 version > 1 ? rest + 3 : rest);
	for (const struct named *n = first; n < first + count; n++)
		if (strcmp(n->symbol, later) == 0)
			return false;
	return in_driver(later) != NULL;
}

/* Finds the known function that CUDA has answered with, by its address or else by the version that was asked for, or
 * returns NULL. *is_newer says that CUDA's function is newer than all known functions of the name. theirs returns a
 * known function's address in CUDA. */
static inline const struct named *named_by(const struct named *first, size_t count, const char *name, int version,
					   bool per_thread, const void *answer, void *(*theirs)(size_t i),
					   void *(*in_driver)(const char *symbol), bool *is_newer)
{
	bool is_known = false;
	for (size_t i = 0; i < count; i++) {
		if (!has_name(first[i].symbol, name, strlen(name)))
			continue;
		is_known = true;
		if (answer == first[i].ours || answer == theirs(i))
			return &first[i];
	}
	const struct named *latest = latest_of(first, count, name, version, per_thread);
	bool is_answered = latest && !has_later(first, count, latest, in_driver);
	*is_newer = is_known && !is_answered;
	return is_answered ? latest : NULL;
}

#endif
