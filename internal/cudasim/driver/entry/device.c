// The driver itself and its devices: start, names, attributes.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/process.h"
#include "entry/gate.h"

#define DRIVER_VERSION 13000

static CUresult init(unsigned flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim.settings.device_count)
		return CUDA_ERROR_NO_DEVICE;
	TRY(budget_join());
	if (!process_publish(memory.devices[0].total)) {
		sim_complain("no memfd can be made; cuInit returns 304");
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim.initialized = true;
	return CUDA_SUCCESS;
}

#define DEVICE_GIVES(device, pointer, value) \
	((pointer) && !device_valid(device) ? CUDA_ERROR_INVALID_DEVICE : GIVES(pointer, value))

static __attribute__((format(printf, 4, 5))) CUresult text(char *text, int length, CUdevice device, const char *format,
							   ...)
{
	if (!text || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, (size_t)length, format, arguments);
	va_end(arguments);
	return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	memcpy(uuid->bytes, "cudasim-device-", 15);
	uuid->bytes[15] = (unsigned char)device;
	return CUDA_SUCCESS;
}

static CUresult peer_attribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer)
{
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device) || !device_valid(peer) || device == peer)
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
	case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		*value = peers(device, peer);
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
	case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: *value = 0; return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

// The attributes of a large GPU of compute capability 9.0; those not listed are 0.
static const int attributes[][2] = {
	{1, 1024},	  // MAX_THREADS_PER_BLOCK
	{2, 1024},	  // MAX_BLOCK_DIM_X
	{3, 1024},	  // MAX_BLOCK_DIM_Y
	{4, 64},	  // MAX_BLOCK_DIM_Z
	{5, 2147483647},  // MAX_GRID_DIM_X
	{6, 65535},	  // MAX_GRID_DIM_Y
	{7, 65535},	  // MAX_GRID_DIM_Z
	{8, 49152},	  // MAX_SHARED_MEMORY_PER_BLOCK
	{9, 65536},	  // TOTAL_CONSTANT_MEMORY
	{10, 32},	  // WARP_SIZE
	{11, 2147483647}, // MAX_PITCH
	{12, 65536},	  // MAX_REGISTERS_PER_BLOCK
	{13, 1980000},	  // CLOCK_RATE
	{14, 512},	  // TEXTURE_ALIGNMENT
	{15, 1},	  // GPU_OVERLAP
	{16, 132},	  // MULTIPROCESSOR_COUNT
	{19, 1},	  // CAN_MAP_HOST_MEMORY
	{30, 512},	  // SURFACE_ALIGNMENT
	{31, 1},	  // CONCURRENT_KERNELS
	{36, 3201000},	  // MEMORY_CLOCK_RATE
	{37, 6144},	  // GLOBAL_MEMORY_BUS_WIDTH
	{38, 62914560},	  // L2_CACHE_SIZE
	{39, 2048},	  // MAX_THREADS_PER_MULTIPROCESSOR
	{40, 3},	  // ASYNC_ENGINE_COUNT
	{41, 1},	  // UNIFIED_ADDRESSING
	{51, 32},	  // TEXTURE_PITCH_ALIGNMENT
	{75, 9},	  // COMPUTE_CAPABILITY_MAJOR
	{76, 0},	  // COMPUTE_CAPABILITY_MINOR
	{78, 1},	  // STREAM_PRIORITIES_SUPPORTED
	{79, 1},	  // GLOBAL_L1_CACHE_SUPPORTED
	{80, 1},	  // LOCAL_L1_CACHE_SUPPORTED
	{81, 233472},	  // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
	{82, 65536},	  // MAX_REGISTERS_PER_MULTIPROCESSOR
	{90, 1},	  // COMPUTE_PREEMPTION_SUPPORTED
	{91, 1},	  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
	{95, 1},	  // COOPERATIVE_LAUNCH
	{97, 232448},	  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	{99, 1},	  // HOST_REGISTER_SUPPORTED
	{102, 1},	  // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	{103, 1},	  // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	{106, 32},	  // MAX_BLOCKS_PER_MULTIPROCESSOR
	{115, 1},	  // MEMORY_POOLS_SUPPORTED
	{134, -1},	  // HOST_NUMA_ID
};

static CUresult attribute_of(int *value, int attribute, CUdevice device)
{
	if (!value || attribute < 1 || attribute > 161)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*value = 0;
	if (attribute == 33) // PCI_BUS_ID
		*value = device + 1;
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		if (attributes[i][0] == attribute)
			*value = attributes[i][1];
	return CUDA_SUCCESS;
}

DEVICE_FUNCTIONS(DEFINE)
