// Plays a trace on the allocator that PyTorch has for a device, as tensors reach it. Only c10's headers
// are needed; native.py compiles it.
#include <c10/core/Allocator.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

// native_play does count operations: an allocate of sizes[i] bytes as block blocks[i], or, when the size
// is 0, its free. What is live at the end is freed off the clock. Returns nanoseconds, negative when the
// allocator threw. device is a c10::DeviceType.
extern "C" double native_play(int device, const uint64_t *sizes, const uint32_t *blocks, uint64_t count,
                              uint32_t most)
{
	std::vector<void *> at(most + 1, nullptr);
	double took = -1;
	c10::Allocator *allocator = c10::GetAllocator(static_cast<c10::DeviceType>(device));
	try {
		auto begin = std::chrono::steady_clock::now();
		for (uint64_t i = 0; i < count; i++) {
			void *&block = at[blocks[i]];
			if (sizes[i]) {
				block = allocator->raw_allocate(sizes[i]);
			} else {
				allocator->raw_deallocate(block);
				block = nullptr;
			}
		}
		took = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
	} catch (const std::exception &) {
	}
	for (void *block : at)
		if (block)
			allocator->raw_deallocate(block);
	return took;
}
