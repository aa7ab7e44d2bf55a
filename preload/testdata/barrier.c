/* The program's arguments lie behind a barrier of its own: a page that its handler of SIGSEGV opens at the first fault,
 * as copying collectors do. */
#include "host.h"

int cuMemGetAllocationPropertiesFromHandle(void *, uint64_t);

static char *page;
static volatile int opened;

static void open_page(int signal, siginfo_t *information, void *context)
{
	(void)signal, (void)context;
	if ((char *)information->si_addr < page || (char *)information->si_addr >= page + 4096)
		_exit(77);
	opened++;
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

/* Returns a copy behind the barrier. */
static void *behind(const void *from, size_t size)
{
	EXPECT(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
	memcpy(page, from, size);
	EXPECT(mprotect(page, 4096, PROT_NONE), 0);
	opened = 0;
	return page;
}

#define OPENS(expression)                                                                          \
	do {                                                                                       \
		EXPECT(expression, 0);                                                             \
		EXPECT(opened, 1);                                                                 \
	} while (0)

int main(void)
{
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	struct sigaction action = {.sa_sigaction = open_page, .sa_flags = SA_SIGINFO};
	EXPECT(sigaction(SIGSEGV, &action, NULL), 0);
	char *memory = pausable(MIB, "t", true);
	const struct prop prop = {.type = 1, .location_type = 1};
	uint64_t handle = 0;
	uintptr_t address = 0;
	void *pointer = NULL;

	IN_REGION(OPENS(cudaMalloc(behind(&pointer, sizeof pointer), 4096)));
	IN_REGION(OPENS(cuMemCreate(&handle, 2 * MIB, behind(&prop, sizeof prop), 0)));
	EXPECT(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0), 0);
	EXPECT(cuMemMap(address, 2 * MIB, 0, handle, 0), 0);
	OPENS(cuMemSetAccess(address, 2 * MIB, behind(&readwrite, sizeof readwrite), 1));
	OPENS(cuMemGetAllocationPropertiesFromHandle(behind(&prop, sizeof prop), handle));
	uint64_t again = 0;
	OPENS(cuMemRetainAllocationHandle(behind(&again, sizeof again), (void *)address));
	const size_t range[2] = {0, 4096};
	OPENS(tms_live(memory, MIB, behind(range, sizeof range), 1));
	const char tag[] = "t";
	OPENS(tms_pause(behind(tag, sizeof tag)));
	OPENS(cuMemGetAllocationPropertiesFromHandle(behind(&prop, sizeof prop), handle));
	OPENS(tms_resume(behind(tag, sizeof tag)));
	return 0;
}
