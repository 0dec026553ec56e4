// Loads memory into the cache while other work goes on. After a forward pass of the model, nothing of a session's
// memory is cached, and a step spends most of its time on misses. Misses that are begun together overlap.
#pragma once

#include <cstddef>
#include <vector>

namespace logitport {

constexpr std::size_t cache_line = 64;
// More would push out what was loaded just before.
constexpr std::size_t max_prefetch = 16384;

inline void prefetch_to_read(const void *memory, std::size_t bytes) noexcept {
  for (std::size_t begin = 0; begin < bytes && begin < max_prefetch; begin += cache_line) {
    __builtin_prefetch(static_cast<const char *>(memory) + begin);
  }
}

inline void prefetch_to_write(const void *memory, std::size_t bytes) noexcept {
  for (std::size_t begin = 0; begin < bytes && begin < max_prefetch; begin += cache_line) {
    __builtin_prefetch(static_cast<const char *>(memory) + begin, 1);
  }
}

template <typename T>
void prefetch_to_write(const std::vector<T> &elements) noexcept {
  prefetch_to_write(elements.data(), elements.size() * sizeof(T));
}

}  // namespace logitport
