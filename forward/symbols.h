/* symbols looks names up in loaded libraries. It makes no call, because a sanitizer may not be ready for one at the
 * very first dlsym, and does not use dlsym, because other libraries interpose that too. */
#ifndef FORWARD_SYMBOLS_H
#define FORWARD_SYMBOLS_H

#include "libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* One library's dynamic symbols. */
struct symbols {
	uintptr_t base;
	const ElfW(Sym) *table;
	const char *names;
	const uint32_t *hash;		/* DT_GNU_HASH, or NULL */
	const uint32_t *old_hash;	/* DT_HASH, or NULL */
	const ElfW(Half) *versions; /* or NULL */
	struct {
		const ElfW(Rela) *first;
		size_t count;
	} bound[2]; /* relocations that refer to symbols: for data, and for calls */
};

/* The entry is the first of the dynamic section, or NULL. */
static inline bool read_symbols(uintptr_t base, const ElfW(Dyn) *entry, struct symbols *symbols)
{
	*symbols = (struct symbols){.base = base};
	size_t relative = 0; /* relative relocations come first, and refer to no symbol */
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		/* glibc has added the base here, musl has not. */
		uintptr_t at = entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
		if (entry->d_tag == DT_SYMTAB)
			symbols->table = (const ElfW(Sym) *)at;
		else if (entry->d_tag == DT_STRTAB)
			symbols->names = (const char *)at;
		else if (entry->d_tag == DT_GNU_HASH)
			symbols->hash = (const uint32_t *)at;
		else if (entry->d_tag == DT_HASH)
			symbols->old_hash = (const uint32_t *)at;
		else if (entry->d_tag == DT_VERSYM)
			symbols->versions = (const ElfW(Half) *)at;
		else if (entry->d_tag == DT_RELA)
			symbols->bound[0].first = (const ElfW(Rela) *)at;
		else if (entry->d_tag == DT_RELASZ)
			symbols->bound[0].count = entry->d_un.d_val / sizeof(ElfW(Rela));
		else if (entry->d_tag == DT_RELACOUNT)
			relative = entry->d_un.d_val;
		else if (entry->d_tag == DT_JMPREL)
			symbols->bound[1].first = (const ElfW(Rela) *)at;
		else if (entry->d_tag == DT_PLTRELSZ)
			symbols->bound[1].count = entry->d_un.d_val / sizeof(ElfW(Rela));
	}
	symbols->bound[0].first += relative;
	symbols->bound[0].count -= relative;
	return symbols->table && symbols->names && (symbols->hash || symbols->old_hash);
}

static inline bool equal(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

/* Returns the address of symbol i if it is the function of that name, of its default version or the first found; else
 * the one found before. */
static inline void *better(const struct symbols *symbols, uint32_t i, const char *name, void *found)
{
	enum { OLD_VERSION = 0x8000 };
	const ElfW(Sym) *symbol = &symbols->table[i];
	if (symbol->st_shndx == SHN_UNDEF || !equal(symbols->names + symbol->st_name, name) ||
	    (found && symbols->versions && symbols->versions[i] & OLD_VERSION))
		return found;
	return (void *)(symbols->base + symbol->st_value);
}

/* For a library with a table of the older kind alone (ld --hash-style=sysv). */
static inline void *defined_by_old_hash(const struct symbols *symbols, const char *name)
{
	uint32_t sum = 0;
	for (const char *c = name; *c; c++) {
		sum = (sum << 4) + (unsigned char)*c;
		sum = (sum ^ (sum >> 24 & 0xf0)) & 0xfffffff;
	}
	const uint32_t buckets = symbols->old_hash[0], *bucket = symbols->old_hash + 2, *chain = bucket + buckets;
	void *found = NULL;
	for (uint32_t i = buckets ? bucket[sum % buckets] : 0; i; i = chain[i])
		found = better(symbols, i, name, found);
	return found;
}

/* The address of a function that the library defines, of its default version where there are several. */
static inline void *defined(const struct symbols *symbols, const char *name)
{
	if (!symbols->hash)
		return defined_by_old_hash(symbols, name);
	uint32_t sum = 5381;
	for (const char *c = name; *c; c++)
		sum = sum * 33 + (unsigned char)*c;
	const uint32_t buckets = symbols->hash[0], first = symbols->hash[1], words = symbols->hash[2];
	const uint32_t *bucket = symbols->hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
	void *found = NULL;
	uint32_t i = buckets ? bucket[sum % buckets] : 0;
	for (; i >= first && i; i++) {
		if ((chain[i - first] | 1) == (sum | 1))
			found = better(symbols, i, name, found);
		if (chain[i - first] & 1)
			break;
	}
	return found;
}

/* The dynamic section, or NULL. */
static inline const ElfW(Dyn) *dynamic_of(const struct dl_phdr_info *info)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return NULL;
}

/* Returns the C library's own dlsym, or NULL for another library: one that defines dlsym has no dlerror. */
static inline void *c_dlsym(const struct symbols *symbols)
{
	return defined(symbols, "dlerror") ? defined(symbols, "dlsym") : NULL;
}

/* A path without its folders. */
static inline const char *file_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* Reports whether a file is this library: with its version behind .so, or with the hash that auditwheel puts behind the
 * name of a file that it copies into a wheel (libcudart-1f2e3d4c.so.12, libcudart.1f2e3d4c.so.12). */
static inline bool is_library(const char *file, const char *library)
{
	size_t length = strlen(library);
	return strncmp(file, library, length) == 0 && (file[length] == '.' || file[length] == '-');
}

/* The path of the next loaded library of this name. Inside libraries_each, which holds a loader lock, the path
 * is only noted: dlopen or malloc under the lock can deadlock with a thread that is loading a library. */
struct loaded {
	const char *library;
	int skip;
	char *path; /* PATH_MAX bytes */
};

static inline int note_path(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct loaded *loaded = data;
	return is_library(file_of(info->dlpi_name), loaded->library) &&
	       strlen(info->dlpi_name) < PATH_MAX && loaded->skip-- == 0 && strcpy(loaded->path, info->dlpi_name);
}

/* NOLOAD returns a handle of a library that is there already; closing it cannot unload the library. */
typedef void *find_function(void *handle, const char *name);
static inline void *in_loaded(const char *path, const char *name, find_function *find)
{
	void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	void *found = library ? find(library, name) : NULL;
	if (library)
		dlclose(library);
	return found;
}

static inline bool is_of_driver(const void *function)
{
	Dl_info info;
	return dladdr(function, &info) && info.dli_fname && strncmp(file_of(info.dli_fname), "libcuda.so", 10) == 0;
}

/* The addresses of the library that a function lies in. They are empty if it lies in no library. */
struct range {
	uintptr_t start, end;
	uintptr_t address;
};

static inline int look_around(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct range *range = data;
	uintptr_t start = UINTPTR_MAX, end = 0;
	bool found = false;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + part->p_vaddr;
		if (part->p_type != PT_LOAD)
			continue;
		start = at < start ? at : start;
		end = at + part->p_memsz > end ? at + part->p_memsz : end;
		found |= range->address - at < part->p_memsz;
	}
	if (found)
		range->start = start, range->end = end;
	return found;
}

static inline struct range range_around(const void *function)
{
	struct range range = {.address = (uintptr_t)function};
	libraries_each(look_around, &range);
	return range;
}

static inline bool within(const void *function, const struct range *range)
{
	return (uintptr_t)function - range->start < range->end - range->start;
}

/* Returns the function, or NULL. Its library stays loaded from now on: a program that closed and reopened it would find
 * it at another address. */
static inline void *kept(void *function)
{
	Dl_info info;
	if (!function || !dladdr(function, &info) || !info.dli_fname)
		return function;
	void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
	if (library)
		dlclose(library);
	else
		dlerror(); /* clears the loader's error, which the program would take for its own */
	return function;
}

/* As kept, but asks the loader only about a function that lies in another library than the last one. */
static inline void *kept_with(void *function, struct range *last)
{
	if (function && !within(function, last)) {
		kept(function);
		*last = range_around(function);
	}
	return function;
}

#endif
