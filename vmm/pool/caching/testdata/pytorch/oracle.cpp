// Plays commands on PyTorch 2.0.0's own native caching allocator and tells what it answered.
// Usage: oracle CAPACITY < commands; settings in PYTORCH_CUDA_ALLOC_CONF. build.sh says how it is made,
// pytorch_test.go what the commands are.
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include <c10/cuda/CUDACachingAllocator.h>

#include "cudart.h"

namespace ca = c10::cuda::CUDACachingAllocator;

static cudaStream_t handle(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

static void print(const ca::Stat &s)
{
	std::cout << ' ' << s.current << ' ' << s.peak << ' ' << s.allocated << ' ' << s.freed;
}

static void print(const ca::StatArray &all)
{
	for (const auto &s : all)
		print(s);
}

static void print(const ca::DeviceStats &s)
{
	for (const auto *all : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
				&s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
		print(*all);
	std::cout << ' ' << s.num_alloc_retries << ' ' << s.num_ooms;
	print(s.oversize_allocations);
	print(s.oversize_segments);
	std::cout << ' ' << s.max_split_size;
}

static void print(const ca::SegmentInfo &s)
{
	std::cout << ' ' << std::hex << s.address << std::dec << (s.is_large ? " large " : " small ")
		  << reinterpret_cast<uintptr_t>(s.stream) << ' ' << s.total_size << ' ' << s.allocated_size << ' '
		  << s.active_size << ' ' << s.requested_size << ' ' << s.blocks.size();
	for (const auto &b : s.blocks)
		std::cout << ' ' << b.size << (b.allocated ? 'a' : b.active ? 'p' : 'i');
}

int main(int, char **arguments)
{
	cudart_capacity(std::stoull(arguments[1]));
	auto *allocator = ca::get();
	allocator->init(1);
	std::map<int, void *> blocks;
	std::map<int, uintptr_t> captured; // by graph
	for (std::string line; std::getline(std::cin, line); std::cout << std::endl) {
		std::istringstream in(line);
		char command;
		unsigned long long a = 0, b = 0, c = 0;
		double fraction;
		in >> command;
		if (command == 'F')
			in >> fraction;
		else
			in >> a >> b >> c;
		std::cout << line << " =";
		switch (command) {
		case 'm':
			try {
				blocks[a] = allocator->raw_alloc_with_stream(b, handle(c));
				std::cout << ' ' << std::hex << reinterpret_cast<uintptr_t>(blocks[a]) << std::dec;
			} catch (const c10::OutOfMemoryError &e) {
				blocks[a] = nullptr;
				const std::string what = e.what_without_backtrace();
				std::cout << ' ' << what.substr(0, what.find(" in total"));
			}
			break;
		case 'f':
			allocator->raw_delete(blocks[a]);
			blocks.erase(a);
			break;
		case 'r': {
			c10::DataPtr data(blocks[a], blocks[a], allocator->raw_deleter(), c10::Device(c10::kCUDA, 0));
			allocator->recordStream(data, c10::cuda::getStreamFromExternal(handle(b), 0));
			data.release_context();
			break;
		}
		case 'y':
			cudart_complete(a);
			break;
		case 'g':
			cudart_capture(c, a);
			captured[a] = c;
			allocator->notifyCaptureBegin(0, a, {b, 0});
			break;
		case 'h':
			allocator->notifyCaptureAboutToEnd(0, a);
			cudart_capture(captured[a], 0);
			allocator->notifyCaptureEnded(0, a);
			break;
		case 'd':
			allocator->notifyCaptureDestroy(0, {a, 0});
			break;
		case 'e':
			allocator->emptyCache();
			break;
		case 'F':
			allocator->setMemoryFraction(fraction, 0);
			break;
		case 'P':
			allocator->resetPeakStats(0);
			break;
		case 'A':
			allocator->resetAccumulatedStats(0);
			break;
		case 's':
			print(allocator->getDeviceStats(0));
			break;
		case 'S':
			for (const auto &s : allocator->snapshot().segments)
				print(s);
			break;
		}
	}
	std::cout.flush();
	std::_Exit(0); // PyTorch's own exit handlers want a device
}
