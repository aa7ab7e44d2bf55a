/* Options and sizes at their extremes, through the C interface: each call returns. Called as: poolextremes KIND */
#include "host.h"

static const char *const names[] = {
	"buffer", "capacity", "min_block", "max", "page", "keep", "max_split_size", "roundup_power2_divisions",
	"total", "device", "memory_limit", "min_chunk", "max_chunk", "initial", "reallocate", "descriptor",
};
static const size_t sizes[] = {1, 511, 4097, MIB, 1100 * MIB, (size_t)1 << 55, (size_t)1 << 63, SIZE_MAX - 511, SIZE_MAX};

static int try(const char *kind, const char *options)
{
	tms_pool *pool = NULL;
	int code = tms_pool_create(&pool, kind, options, -1);
	if (code != 0) {
		EXPECT(code, 1);
		CHECK(strstr(tms_last_error(), "invalid pool option"));
		return 0;
	}
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		void *block = NULL;
		code = tms_pool_malloc(pool, &block, sizes[i], NULL);
		CHECK(code == 0 ? block != NULL : code == 2 && !block);
		EXPECT(tms_pool_free(pool, block), 0);
	}
	EXPECT(tms_pool_destroy(pool), 0);
	return 1;
}

int main(int argc, char **argv)
{
	char options[100];
	int made = 0;
	CHECK(argc == 2);
	size_t before = free_bytes();
	for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
		for (int shift = 0; shift < 64; shift++) {
			for (int more = -1; more < 2; more++) {
				snprintf(options, sizeof options, "%s=%zu", names[n], ((size_t)1 << shift) + (size_t)more);
				made += try(argv[1], options);
			}
		}
		snprintf(options, sizeof options, "%s=%zu", names[n], SIZE_MAX);
		made += try(argv[1], options);
	}
	made += try(argv[1], "");
	CHECK(made > 0);
	made += try(argv[1], "page=64GiB,capacity=256GiB");
	EXPECT(free_bytes(), before);
	return 0;
}
