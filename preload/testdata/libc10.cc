// Stands in for PyTorch's libc10.so: what throws, unless WITHOUT_THROW is defined, and a caller of an allocation
// function that catches.
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <sys/types.h>

#ifndef WITHOUT_THROW
namespace c10::detail {
[[noreturn]] void torchCheckFail(const char *function, const char *file, uint32_t line, const char *message)
{
	if (!function || !file)
		throw line;
	throw std::runtime_error(message);
}
}
#endif

// Copies the words of what allocate throws; false: it throws nothing.
extern "C" bool catches(void *(*allocate)(ssize_t, int, void *), ssize_t size, char *words, size_t capacity)
{
	try {
		allocate(size, 0, nullptr);
		return false;
	} catch (const std::runtime_error &error) {
		snprintf(words, capacity, "%s", error.what());
		return true;
	}
}
