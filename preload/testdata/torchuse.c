/* Which PyTorch versions a pool can serve. Called as: torchuse none, or: torchuse throws LIBC10, or: torchuse silent
 * LIBC10 */
#include "host.h"

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	size_t before = free_bytes();
	if (argc == 3)
		CHECK(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL));
	if (strcmp(argv[1], "silent") == 0) {
		for (int i = 0; i < 2; i++) {
			EXPECT(tms_torch_pool_use("caching", NULL), 801);
			CHECK(strstr(tms_last_error(), "torchCheckFail"));
		}
		CHECK(!tms_torch_pool_malloc(MIB, 0, NULL));
		CHECK(strstr(tms_last_error(), "no kind of pool is chosen"));
		return 0;
	}
	EXPECT(tms_torch_pool_use("caching", NULL), 0);
	void *block = tms_torch_pool_malloc_or_throw(MIB, 0, NULL);
	CHECK(block);
	tms_torch_pool_free(block, MIB, 0, NULL);
	if (argc == 2) { /* A program of C's own sees NULL, and a line on stderr. */
		CHECK(!tms_torch_pool_malloc_or_throw((ssize_t)1 << 50, 0, NULL));
		CHECK(strstr(tms_last_error(), "out of memory"));
	}
	tms_torch_pool_reset();
	EXPECT(free_bytes(), before);
	return 0;
}
