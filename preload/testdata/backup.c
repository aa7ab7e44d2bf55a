/* With a backup, contents come back bit for bit; without one the memory is fresh. Host copies can be read while paused,
 * and after a resume if they are retained. */
#include "host.h"

/* Host memory that takes long to return to the system is returned in the background. */
static void registered_falls_to(uint64_t bytes)
{
	for (int tries = 0; sim_stat("registered_bytes") != bytes && tries < 500; tries++)
		usleep(10000);
	EXPECT(sim_stat("registered_bytes"), bytes);
}

int main(void)
{
	enum { COUNT = 8 };
	size_t before = free_bytes(), sizes[COUNT];
	void *kept[COUNT], *lost = pausable(5 * MIB, "lost", false);
	fill(lost, 5 * MIB, 1);
	for (unsigned i = 0; i < COUNT; i++) {
		sizes[i] = i * 3 * MIB + 1000 * (i + 1);
		sizes[i] -= sizes[i] % 4;
		kept[i] = kept_memory(sizes[i], "kept", i);
	}
	for (int cycle = 0; cycle < 3; cycle++) {
		EXPECT(tms_pause(NULL), 0);
		EXPECT(free_bytes(), before);
		CHECK(sim_stat("registered_bytes") >= 84 * MIB);
		unsigned *copy = (unsigned *)tms_get_cpu_backup_pointer((uint8_t *)kept[5] + 400, 4);
		CHECK(copy);
		EXPECT(*copy, (100 * 2654435761u) ^ 5);
		CHECK(!tms_get_cpu_backup_pointer(lost, 4));
		CHECK(strstr(tms_last_error(), "no host copy"));
		EXPECT(tms_resume(NULL), 0);
		for (unsigned i = 0; i < COUNT; i++)
			CHECK(filled(kept[i], sizes[i], i));
		CHECK(!tms_get_cpu_backup_pointer(kept[5], 4));
	}
	unsigned *zero = malloc(5 * MIB);
	EXPECT(cudaMemcpy(zero, lost, 5 * MIB, 2), 0);
	for (size_t i = 0; i < 5 * MIB / 4; i++)
		EXPECT(zero[i], 0);
	free(zero);

	/* Retained: the same host address every cycle, also while active; a later pause renews it. */
	tms_set_retain_cpu_backup(true);
	EXPECT(tms_pause("kept"), 0);
	uint8_t *copy = tms_get_cpu_backup_pointer(kept[3], sizes[3]);
	CHECK(copy);
	for (unsigned cycle = 1; cycle < 4; cycle++) {
		EXPECT(tms_resume("kept"), 0);
		CHECK(tms_get_cpu_backup_pointer(kept[3], sizes[3]) == copy);
		fill(kept[3], sizes[3], 3 + cycle);
		EXPECT(tms_pause("kept"), 0);
		CHECK(tms_get_cpu_backup_pointer(kept[3], sizes[3]) == copy);
		EXPECT(*(unsigned *)copy, 3 + cycle);
	}
	/* A pause that fails may have overwritten part of it: then it is no longer returned. */
	EXPECT(tms_resume("kept"), 0);
	sim_fail("cuMemcpyDtoHAsync", 2, 999);
	EXPECT(tms_pause("kept"), 999);
	CHECK(!tms_get_cpu_backup_pointer(kept[3], sizes[3]));
	CHECK(filled(kept[3], sizes[3], 6));
	EXPECT(tms_pause("kept"), 0);
	CHECK(tms_get_cpu_backup_pointer(kept[3], sizes[3]) == copy);
	tms_set_retain_cpu_backup(false);
	EXPECT(tms_resume("kept"), 0);
	CHECK(filled(kept[3], sizes[3], 6));
	CHECK(!tms_get_cpu_backup_pointer(kept[3], sizes[3]));

	/* Pinned ahead: the pause pins nothing more, and a trim frees what no paused segment needs. */
	registered_falls_to(0);
	EXPECT(tms_prepare("kept", true), 0);
	uint64_t pinned = sim_stat("registered_bytes"), pins = sim_stat("calls:cuMemHostRegister");
	CHECK(pinned >= 84 * MIB);
	CHECK(!tms_get_cpu_backup_pointer(kept[3], 4));
	EXPECT(tms_prepare(NULL, true), 0);
	EXPECT(tms_pause("kept"), 0);
	EXPECT(sim_stat("calls:cuMemHostRegister"), pins);
	EXPECT(tms_trim(), 0);
	EXPECT(sim_stat("registered_bytes"), pinned);
	EXPECT(tms_resume("kept"), 0);
	for (unsigned i = 0; i < COUNT; i++)
		CHECK(filled(kept[i], sizes[i], i == 3 ? 6 : i));
	registered_falls_to(0);
	EXPECT(tms_prepare("kept", false), 0);
	for (int tries = 0; sim_stat("registered_bytes") < pinned && tries < 500; tries++)
		usleep(10000);
	EXPECT(tms_trim(), 0);
	EXPECT(sim_stat("registered_bytes"), 0);

	/* With the backend "mmap" host memory is returned before the call is, however long that takes. */
	tms_set_cpu_backup_backend("mmap");
	void *prompt = pausable(32 * MIB, "prompt", true);
	tms_set_cpu_backup_backend("pinned");
	fill(prompt, 32 * MIB, 5);
	for (int cycle = 0; cycle < 10; cycle++) {
		EXPECT(tms_pause("prompt"), 0);
		CHECK(sim_stat("registered_bytes") >= 32 * MIB);
		EXPECT(tms_resume("prompt"), 0);
		EXPECT(sim_stat("registered_bytes"), 0);
		CHECK(filled(prompt, 32 * MIB, 5));
	}
	EXPECT(tms_pause("prompt"), 0);
	EXPECT(cudaFree(prompt), 0);
	EXPECT(sim_stat("registered_bytes"), 0);

	/* Ranges that are not in one segment. */
	CHECK(!tms_get_cpu_backup_pointer((uint8_t *)&before, 1));
	CHECK(strstr(tms_last_error(), "not in a segment"));
	CHECK(!tms_get_cpu_backup_pointer(kept[3], sizes[3] + 1));
	CHECK(strstr(tms_last_error(), "past the end"));
	for (int i = 0; i < COUNT; i++)
		EXPECT(cudaFree(kept[i]), 0);
	EXPECT(cudaFree(lost), 0);
	EXPECT(free_bytes(), before);
	registered_falls_to(0);
	return 0;
}
