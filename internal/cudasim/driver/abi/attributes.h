// Attributes of devices, as a large GPU of compute capability 9.0 has them: number, name, value, and the field of the
// runtime's cudaDeviceProp. Rows of X have no field, those of OLD only before CUDA 13. Those not listed are 0.
#ifndef CUDASIM_ATTRIBUTES_H
#define CUDASIM_ATTRIBUTES_H

#define DEVICE_ATTRIBUTES(X, P, OLD) \
	P(1, MAX_THREADS_PER_BLOCK, 1024, maxThreadsPerBlock) \
	P(2, MAX_BLOCK_DIM_X, 1024, maxThreadsDim[0]) \
	P(3, MAX_BLOCK_DIM_Y, 1024, maxThreadsDim[1]) \
	P(4, MAX_BLOCK_DIM_Z, 64, maxThreadsDim[2]) \
	P(5, MAX_GRID_DIM_X, 2147483647, maxGridSize[0]) \
	P(6, MAX_GRID_DIM_Y, 65535, maxGridSize[1]) \
	P(7, MAX_GRID_DIM_Z, 65535, maxGridSize[2]) \
	P(8, MAX_SHARED_MEMORY_PER_BLOCK, 49152, sharedMemPerBlock) \
	P(9, TOTAL_CONSTANT_MEMORY, 65536, totalConstMem) \
	P(10, WARP_SIZE, 32, warpSize) \
	P(11, MAX_PITCH, 2147483647, memPitch) \
	P(12, MAX_REGISTERS_PER_BLOCK, 65536, regsPerBlock) \
	OLD(13, CLOCK_RATE, 1980000, clockRate) \
	P(14, TEXTURE_ALIGNMENT, 512, textureAlignment) \
	OLD(15, GPU_OVERLAP, 1, deviceOverlap) \
	P(16, MULTIPROCESSOR_COUNT, 132, multiProcessorCount) \
	X(18, INTEGRATED, sim.settings.integrated) \
	P(19, CAN_MAP_HOST_MEMORY, 1, canMapHostMemory) \
	P(30, SURFACE_ALIGNMENT, 512, surfaceAlignment) \
	P(31, CONCURRENT_KERNELS, 1, concurrentKernels) \
	P(33, PCI_BUS_ID, device + 1, pciBusID) \
	OLD(36, MEMORY_CLOCK_RATE, 3201000, memoryClockRate) \
	P(37, GLOBAL_MEMORY_BUS_WIDTH, 6144, memoryBusWidth) \
	P(38, L2_CACHE_SIZE, 62914560, l2CacheSize) \
	P(39, MAX_THREADS_PER_MULTIPROCESSOR, 2048, maxThreadsPerMultiProcessor) \
	P(40, ASYNC_ENGINE_COUNT, 3, asyncEngineCount) \
	P(41, UNIFIED_ADDRESSING, 1, unifiedAddressing) \
	P(51, TEXTURE_PITCH_ALIGNMENT, 32, texturePitchAlignment) \
	P(75, COMPUTE_CAPABILITY_MAJOR, 9, major) \
	P(76, COMPUTE_CAPABILITY_MINOR, 0, minor) \
	P(78, STREAM_PRIORITIES_SUPPORTED, 1, streamPrioritiesSupported) \
	P(79, GLOBAL_L1_CACHE_SUPPORTED, 1, globalL1CacheSupported) \
	P(80, LOCAL_L1_CACHE_SUPPORTED, 1, localL1CacheSupported) \
	P(81, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472, sharedMemPerMultiprocessor) \
	P(82, MAX_REGISTERS_PER_MULTIPROCESSOR, 65536, regsPerMultiprocessor) \
	P(90, COMPUTE_PREEMPTION_SUPPORTED, 1, computePreemptionSupported) \
	P(91, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1, canUseHostPointerForRegisteredMem) \
	P(95, COOPERATIVE_LAUNCH, 1, cooperativeLaunch) \
	P(97, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448, sharedMemPerBlockOptin) \
	P(99, HOST_REGISTER_SUPPORTED, 1, hostRegisterSupported) \
	X(102, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1) \
	X(103, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1) \
	P(106, MAX_BLOCKS_PER_MULTIPROCESSOR, 32, maxBlocksPerMultiProcessor) \
	P(115, MEMORY_POOLS_SUPPORTED, 1, memoryPoolsSupported) \
	X(134, HOST_NUMA_ID, -1)

#endif
