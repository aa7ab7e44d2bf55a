/* region.c keeps what threads ask for, and their tags' names; environment.c reads the environment. */
#include "region.h"

#include <stdlib.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

__thread struct region_thread region_thread
	__attribute__((tls_model("initial-exec"), visibility("hidden")));
HIDDEN struct region_settings region_defaults = {.tag = "default"};
HIDDEN struct region_config region_config = {.extent_bytes = 80 << 20 /* four of PyTorch's blocks */, .shareable = -1,
						.share_at_least = -1,
						.pause_lines = true,
						.signal_wait = 5};
HIDDEN struct region_process region_process;

/* Names are never freed, so the lists only grow and need no lock, which fork could leave held. A program may name each
 * of its steps: the lists stay short up to a hundred thousand. */
struct name {
	struct name *next;
	char text[];
};
static _Atomic(struct name *) names[1 << 13];

/* FNV-1a. */
static uint32_t hash(const char *text)
{
	uint32_t sum = 2166136261;
	for (; *text; text++)
		sum = (sum ^ (unsigned char)*text) * 16777619;
	return sum;
}

HIDDEN const char *region_intern(const char *text)
{
	_Atomic(struct name *) *list = &names[hash(text) % (sizeof names / sizeof *names)];
	struct name *head = atomic_load_explicit(list, memory_order_acquire);
	for (struct name *n = head; n; n = n->next)
		if (strcmp(n->text, text) == 0)
			return n->text;
	size_t size = strlen(text) + 1;
	struct name *fresh = malloc(sizeof *fresh + size);
	if (!fresh)
		return NULL;
	memcpy(fresh->text, text, size);
	fresh->next = head;
	while (!atomic_compare_exchange_weak_explicit(list, &fresh->next, fresh,
						      memory_order_acq_rel, memory_order_acquire)) {
		/* Other threads have added names: this one may be among them. */
		for (struct name *n = fresh->next; n && n != head; n = n->next)
			if (strcmp(n->text, text) == 0) {
				free(fresh);
				return n->text;
			}
		head = fresh->next;
	}
	return fresh->text;
}

HIDDEN struct region_settings region_get(void)
{
	region_load_environment();
	struct region_settings settings = region_thread.set ? region_thread.settings : region_defaults;
	settings.active = region_active();
	return settings;
}

HIDDEN bool region_wanted(void)
{
	region_load_environment();
	return region_thread.wanted ^ region_defaults.active;
}

static void settle(void)
{
	region_thread.active = (region_wanted() && !region_thread.excluded) ^ region_defaults.active;
}

HIDDEN void region_set_active(bool on)
{
	region_load_environment();
	region_thread.wanted = on ^ region_defaults.active;
	settle();
}

HIDDEN void region_set_excluded(bool on)
{
	region_load_environment();
	region_thread.excluded = on;
	settle();
}

HIDDEN struct region_settings *region_mine(void)
{
	region_load_environment();
	if (!region_thread.set)
		region_thread.settings = region_defaults;
	region_thread.set = true;
	return &region_thread.settings;
}

HIDDEN bool region_set_tag(const char *tag)
{
	bool other = tag && *tag && strcmp(tag, region_defaults.tag) != 0;
	const char *kept = other ? region_intern(tag) : region_defaults.tag;
	if (kept)
		region_mine()->tag = kept;
	return kept;
}
