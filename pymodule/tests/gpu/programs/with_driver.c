/* A program on the driver's functions, with two contexts of its own and none that is primary. Its kernel is PTX; with
 * -DWITHOUT_KERNELS, for the simulator, copies and fills do its work. */
#include "driver.h"
#include "steps.h"

int cuDeviceGet(int *device, int ordinal);
int cuCtxCreate_v2(context *made, unsigned flags, int device);
int cuCtxDestroy_v2(context of);
int cuMemAllocAsync(pointer *made, size_t size, stream of);
int cuMemFree_v2(pointer of);
int cuMemFreeAsync(pointer of, stream in);

enum { CONTEXTS = 2 };
#ifdef WITHOUT_KERNELS
enum { COUNT = 4 << 20 };
#else
enum { COUNT = 64 << 20 };
typedef struct CUmod_st *module;
typedef struct CUfunc_st *function;
int cuModuleLoadData(module *made, const void *image);
int cuModuleGetFunction(function *found, module in, const char *name);
int cuLaunchKernel(function of, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
		   unsigned block_z, unsigned shared, stream in, void **parameters, void **extra);

static const char ptx[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	".visible .entry advance(.param .u64 values, .param .u32 count, .param .u32 step)\n{\n"
	".reg .pred %p;\n.reg .b32 %r<7>;\n.reg .b64 %d<3>;\n"
	"mov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %ntid.x;\nmov.u32 %r2, %tid.x;\nmad.lo.u32 %r3, %r0, %r1, %r2;\n"
	"ld.param.u32 %r4, [count];\nsetp.ge.u32 %p, %r3, %r4;\n@%p ret;\n"
	"ld.param.u64 %d0, [values];\ncvta.to.global.u64 %d0, %d0;\nmul.wide.u32 %d1, %r3, 4;\nadd.s64 %d2, %d0, %d1;\n"
	"ld.global.u32 %r5, [%d2];\nld.param.u32 %r6, [step];\nmad.lo.u32 %r5, %r5, 1664525, %r6;\n"
	"st.global.u32 [%d2], %r5;\nret;\n}\n";
#endif

struct part {
	context context;
	stream stream;
	pointer values;
#ifndef WITHOUT_KERNELS
	function advance;
#endif
};

static void begin(struct part *part, int device, unsigned value)
{
	CHECK(cuCtxCreate_v2(&part->context, 0, device));
	CHECK(cuStreamCreate(&part->stream, NON_BLOCKING));
	CHECK(cuMemAlloc_v2(&part->values, COUNT * sizeof(unsigned)));
	CHECK(cuMemsetD32Async(part->values, value, COUNT, part->stream));
#ifndef WITHOUT_KERNELS
	module loaded;
	CHECK(cuModuleLoadData(&loaded, ptx));
	CHECK(cuModuleGetFunction(&part->advance, loaded, "advance"));
#endif
	CHECK(cuCtxSynchronize());
}

static void advance(struct part *part, unsigned step)
{
#ifdef WITHOUT_KERNELS
	const size_t half = COUNT / 2, at = step % half;
	CHECK(cuMemcpyDtoDAsync_v2(part->values, part->values + half * sizeof step, at * sizeof step, part->stream));
	CHECK(cuMemsetD32Async(part->values + (half + at) * sizeof(unsigned), step, half - at, part->stream));
#else
	unsigned count = COUNT;
	CHECK(cuLaunchKernel(part->advance, COUNT / 256, 1, 1, 256, 1, 1, 0, part->stream,
			     (void *[]){&part->values, &count, &step}, NULL));
#endif
}

int main(int argc, char **argv)
{
	enum { PASSING = 1 << 20 };
	const int steps = argc > 1 ? atoi(argv[1]) : 0;
	struct part parts[CONTEXTS];
	static unsigned shown[1024];
	unsigned *host = malloc(COUNT * sizeof *host);
	int device, number = 0;
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	for (int i = 0; i < CONTEXTS; i++)
		begin(&parts[i], device, (unsigned)i + 1);
	for (; goes_on(number, steps); number++) {
		for (int i = 0; i < CONTEXTS; i++) {
			struct part *part = &parts[i];
			pointer passing;
			CHECK(cuCtxSetCurrent(part->context));
			CHECK(cuMemAllocAsync(&passing, PASSING, part->stream));
			for (unsigned j = 0; j < 8; j++)
				advance(part, (unsigned)number * 8 + j);
			CHECK(cuMemcpyDtoDAsync_v2(passing, part->values, PASSING, part->stream));
			CHECK(cuMemcpyDtoHAsync_v2(shown, passing + PASSING - sizeof shown, sizeof shown, part->stream));
			CHECK(cuMemFreeAsync(passing, part->stream));
			CHECK(cuStreamSynchronize(part->stream));
			note(shown, sizeof shown);
		}
		if (number == 0)
			ready(CONTEXTS * COUNT * sizeof(unsigned));
	}
	for (int i = 0; i < CONTEXTS; i++) {
		CHECK(cuCtxSetCurrent(parts[i].context));
		CHECK(cuMemcpyDtoHAsync_v2(host, parts[i].values, COUNT * sizeof *host, parts[i].stream));
		CHECK(cuStreamSynchronize(parts[i].stream));
		note(host, COUNT * sizeof *host);
		CHECK(cuMemFree_v2(parts[i].values));
		CHECK(cuCtxDestroy_v2(parts[i].context));
	}
	free(host);
	return end(number);
}
