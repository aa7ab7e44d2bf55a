// Kernels: libraries, functions and launches. What the digest kernel computes is for vmm/digest's tests.
#include "cases.h"

typedef unsigned long long number;
struct block {
	number address, bytes;
};
struct key {
	number r, q;
	unsigned low[8], high[8]; // of k, which is high * 2^29 + low
};
struct keys {
	struct key lane[2];
};

static const char image[] = "// a comment\n.version 8.0\n.target sm_70\n.address_size 64\n"
			    ".visible .entry other_kernel(.param .u64 a)\n{\n ret;\n}\n"
			    ".visible .entry tms_digest(\n.param .u64 a\n)\n{\n ret;\n}\n";
static const struct keys keys = {
	{{0x123456789abcdefull,
	  3,
	  {1, 0x1fffffff, 77, 0xedcba98, 5, 6, 7, 8},
	  {0, 0x1fffffff, 9, 0x1bcdef, 1, 2, 3, 4}},
	 {2, 0x1ffffffffffffffe, {5, 6, 0x10000000, 8, 1, 0, 2, 3}, {4, 3, 2, 1, 0x1ffffffe, 6, 7, 8}}}};

static CUlibrary load(void)
{
	CUlibrary library;
	OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	return library;
}

static CUfunction function_of(CUlibrary library)
{
	CUkernel kernel;
	CUfunction function;
	OK(cuLibraryGetKernel(&kernel, library, "tms_digest"));
	OK(cuKernelGetFunction(&function, kernel));
	return function;
}

static CUfunction digest_function(void)
{
	return function_of(load());
}

static CUresult launch(CUfunction function, unsigned grid, CUdeviceptr blocks, CUdeviceptr digests,
		       CUstream stream)
{
	struct keys copy = keys;
	void *parameters[] = {&blocks, &digests, &copy};
	CUresult result = cuLaunchKernel(function, grid, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
	memset(&copy, 0, sizeof copy); // the launch has copied its parameters
	return result;
}

static CUdeviceptr table(number address, number bytes)
{
	CUdeviceptr at = allocate(sizeof(struct block));
	OK(cuMemcpyHtoD_v2(at, &(struct block){address, bytes}, sizeof(struct block)));
	return at;
}

static number digest(CUdeviceptr memory, number size)
{
	CUdeviceptr results = allocate(16);
	OK(launch(digest_function(), 1, table(memory, size), results, NULL));
	OK(cuCtxSynchronize());
	return *(number *)bytes(results);
}

STARTED(launches_wait_their_turn)
{
	CUstream stream = apart();
	CUdeviceptr memory = mapped(GRANULE), list = table(memory, GRANULE), results = allocate(16);
	number *got = (number *)bytes(results);
	OK(cuMemsetD32Async(memory, 0x01020304, GRANULE / 4, stream));
	OK(launch(digest_function(), 1, list, results, stream));
	OK(cuMemsetD32_v2(list, 0, 0));
	CHECK(got[0] == 0 && cudasim_stat("pending") == 2);
	OK(cuMemsetD8Async(memory, 9, GRANULE, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(bytes(memory)[0] == 9);
	number after = digest(memory, GRANULE);
	OK(cuMemsetD32_v2(memory, 0x01020304, GRANULE / 4));
	CHECK(got[0] == digest(memory, GRANULE) && got[0] != after);
	CHECK(digest(memory, 0) == 0 && digest(memory, 15) == 0); // an incomplete group is not read
}

STARTED(graphs_replay_launches)
{
	CUstream stream = apart();
	CUdeviceptr memory = mapped(GRANULE), list = table(memory, 4096), results = allocate(16);
	CUfunction function = digest_function();
	CUgraph graph;
	CUgraphExec exec;
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(launch(function, 1, list, results, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int round = 1; round < 4; round++) {
		OK(cuMemUnmap(memory, GRANULE)); // mapping it again before the graph's launch is fine
		back(memory, GRANULE);
		memset(bytes(memory), round, 4096);
		OK(cuGraphLaunch(exec, stream));
		OK(cuStreamSynchronize(stream));
		CHECK(*(number *)bytes(results) == digest(memory, 4096));
	}
}

CASE(images_and_names)
{
	CUlibrary library;
	CUkernel kernel, again;
	CUfunction function, same;
	GIVES(3, cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuInit(0));
	GIVES(1, cuLibraryLoadData(NULL, image, NULL, NULL, 0, NULL, NULL, 0));
	GIVES(1, cuLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0));
	GIVES(1, cuLibraryLoadData(&library, image, NULL, NULL, 1, NULL, NULL, 0));
	OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0)); // no context is needed
	CHECK(cudasim_stat("libraries") == 1);
	OK(cuLibraryGetKernel(&kernel, library, "tms_digest"));
	OK(cuLibraryGetKernel(&again, library, "tms_digest"));
	CHECK(kernel == again);
	GIVES(500, cuLibraryGetKernel(&kernel, library, "other_kernel")); // in the image, not emulated
	GIVES(500, cuLibraryGetKernel(&kernel, library, "tms_diges"));
	GIVES(1, cuLibraryGetKernel(&kernel, library, NULL));
	GIVES(400, cuLibraryGetKernel(&kernel, (CUlibrary)kernel, "tms_digest"));
	GIVES(201, cuKernelGetFunction(&function, kernel));
	start(0);
	OK(cuKernelGetFunction(&function, kernel));
	OK(cuKernelGetFunction(&same, kernel));
	CHECK(function == same);
	GIVES(400, cuKernelGetFunction(&function, (CUkernel)library));
	CUlibrary without;
	const char *rubbish[] = {"", "rubbish", "\177ELF"};
	for (int i = 0; i < 3; i++) {
		OK(cuLibraryLoadData(&without, rubbish[i], NULL, NULL, 0, NULL, NULL, 0)); // checked later
		GIVES(200, cuLibraryGetKernel(&again, without, "tms_digest"));
	}
	const char *lacking = ".version 8.0\n.target sm_70\n// .entry of tms_digest\n"
			      ".entry tms_digest2()\n{\n}\n";
	OK(cuLibraryLoadData(&without, lacking, NULL, NULL, 0, NULL, NULL, 0));
	GIVES(500, cuLibraryGetKernel(&again, without, "tms_digest"));
	CHECK(cudasim_stat("libraries") == 5);
}

CASE(launches_are_checked)
{
	CUcontext first = start(0), second = start(1);
	CUstream elsewhere = apart();
	OK(cuCtxSetCurrent(first));
	CUfunction function = digest_function();
	CUdeviceptr list = table(0, 0), results = allocate(16);
	struct keys copy = keys;
	void *parameters[] = {&list, &results, &copy};
	const unsigned wrong[][6] = {{0, 1, 1, 256, 1, 1}, {1, 0, 1, 256, 1, 1},     {1, 1, 0, 256, 1, 1},
				     {1, 1, 1, 0, 1, 1},   {1, 1, 1, 256, 0, 1},     {1, 1, 1, 256, 1, 0},
				     {1, 1, 1, 1025, 1, 1}, {1, 1, 1, 32, 64, 1},    {1, 1, 1, 1, 1, 65},
				     {1, 65536, 1, 256, 1, 1}, {1u << 31, 1, 1, 256, 1, 1}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		GIVES(1, cuLaunchKernel(function, wrong[i][0], wrong[i][1], wrong[i][2], wrong[i][3],
					wrong[i][4], wrong[i][5], 0, NULL, parameters, NULL));
	GIVES(801, cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
	GIVES(801, cuLaunchKernel(function, 1, 2, 1, 256, 1, 1, 0, NULL, parameters, NULL));
	GIVES(1, cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL));
	GIVES(400, launch(NULL, 1, list, results, NULL));
	GIVES(400, launch((CUfunction)first, 1, list, results, NULL));
	GIVES(400, launch(function, 1, list, results, elsewhere));
	OK(cuCtxSetCurrent(second));
	GIVES(400, launch(function, 1, list, results, elsewhere)); // a function belongs to one context
	GIVES(400, launch(function, 1, list, results, NULL));
	OK(cuCtxSetCurrent(first));
	CUstream mine = apart();
	OK(cuCtxSetCurrent(NULL));
	OK(launch(function, 1, list, results, mine)); // the stream determines the context
	GIVES(201, launch(function, 1, list, results, NULL));
	OK(cuCtxSetCurrent(first));
	CUkernel kernel;
	OK(cuLibraryGetKernel(&kernel, load(), "tms_digest"));
	OK(launch((CUfunction)kernel, 1, list, results, mine));
	cudasim_fail("cuLaunchKernel", 1, 701);
	GIVES(701, launch(function, 1, list, results, NULL));
	uint64_t calls = cudasim_stat("calls:cuLaunchKernel");
	OK(launch(function, 1, list, results, NULL));
	CHECK(cudasim_stat("calls:cuLaunchKernel") == calls + 1);
	OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	OK(cuCtxSynchronize());
	OK(cuDevicePrimaryCtxReset_v2(0));
	start(0);
	GIVES(400, launch(function, 1, list, results, NULL)); // gone with its context
	CUresult (*found)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  CUstream, void **, void **) = NULL;
	OK(cuGetProcAddress_v2("cuLaunchKernel", (void **)&found, 12000,
			       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
	CHECK(found == cuLaunchKernel_ptsz);
	OK(cuGetProcAddress_v2("cuLibraryLoadData", (void **)&found, 11080, 0, NULL));
	CHECK(!found);
	OK(cuGetProcAddress_v2("cuLibraryLoadData", (void **)&found, 12000, 0, NULL));
	CHECK((void *)found == (void *)cuLibraryLoadData);
}

// Each loses the context once, in the wait for the launch.
static void lost(int code, CUdeviceptr list, CUdeviceptr results)
{
	OK(launch(digest_function(), 1, list, results, NULL));
	GIVES(code, cuCtxSynchronize());
	GIVES(code, cuMemGetInfo_v2(&(size_t){0}, NULL));
	OK(cuDevicePrimaryCtxReset_v2(0));
	start(0);
}

STARTED(bad_memory_kills_the_context)
{
	CUdeviceptr empty = reserve(GRANULE), other = reserve(GRANULE), results;
	char *pageable = malloc(4096);
	lost(700, table(empty, 4096), allocate(16));			// not mapped
	lost(700, empty, allocate(16));					// the table is not mapped
	lost(700, table(mapped(GRANULE) + 4096, GRANULE), allocate(16)); // beyond the end
	lost(700, table((number)pageable, 4096), allocate(16));
	lost(700, table(0, 16), allocate(16));
	lost(716, table(mapped(GRANULE) + 4, 4096), allocate(16));
	back(empty, GRANULE);
	lost(700, table(empty, 4096), other);
	results = allocate(16);
	OK(set_access(empty, GRANULE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	lost(700, table(empty, 4096), results);
	allow(empty, GRANULE);
	// Unmapped, and mapped again, while the launch is in flight.
	CUdeviceptr list = table(empty, 4096);
	OK(launch(digest_function(), 1, list, allocate(16), NULL));
	OK(cuMemUnmap(empty, GRANULE));
	back(empty, GRANULE);
	GIVES(700, cuCtxSynchronize());
}

STARTED(unmapping_other_memory_is_fine)
{
	CUdeviceptr memory = mapped(GRANULE), other = mapped(GRANULE);
	char *host = pinned(4096); // the device reaches it
	*(struct block *)host = (struct block){memory, GRANULE};
	memset(bytes(memory), 1, GRANULE);
	OK(launch(digest_function(), 1, (CUdeviceptr)host, (CUdeviceptr)host + 1024, NULL));
	OK(cuMemUnmap(other, GRANULE));
	back(other, GRANULE);
	OK(cuCtxSynchronize());
	CHECK(*(number *)(host + 1024) == digest(memory, GRANULE));
}

// The kernel that counts launches, also by cuLaunchKernelEx.
STARTED(every_launch_counts)
{
	CUlibrary library;
	CUkernel kernel;
	const char *ptx = ".version 6.0\n.target sm_70\n.entry cudasim_add(.param .u64 a, .param .u64 b, .param .u32 c) {}";
	OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "cudasim_add"));
	CUdeviceptr words = allocate(16);
	uint64_t count = 3;
	unsigned number = 5;
	void *parameters[] = {&words, &count, &number};
	CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
	OK(cuMemsetD32_v2(words, 1, 4));
	OK(cuLaunchKernelEx(&config, (CUfunction)kernel, parameters, NULL));
	OK(cuLaunchKernelEx_ptsz(&config, (CUfunction)kernel, parameters, NULL));
	OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	OK(cuCtxSynchronize());
	const unsigned *found = (const unsigned *)bytes(words);
	CHECK(found[0] == 16 && found[2] == 16 && found[3] == 1);
	GIVES(1, cuLaunchKernelEx(NULL, (CUfunction)kernel, parameters, NULL));
	config.numAttrs = 1;
	GIVES(801, cuLaunchKernelEx(&config, (CUfunction)kernel, parameters, NULL));
	config.numAttrs = 0;
	words += 2;
	GIVES(0, cuLaunchKernelEx(&config, (CUfunction)kernel, parameters, NULL));
	GIVES(716, cuCtxSynchronize()); // a misaligned address
}
