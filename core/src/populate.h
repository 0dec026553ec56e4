// Gets pages of memory from the kernel in one system call. A fault for each page takes half as long again.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace logitport {

// Get the pages of new memory that is written next. May do nothing: each page then comes when it is written.
inline void populate(void *memory, std::size_t bytes) noexcept {
#ifdef __linux__
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE of Linux 5.14, which older headers lack
  constexpr std::size_t page = 4096;
  const std::size_t before = (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
  if (bytes >= before + 8 * page) {  // fewer are not worth the call
    static_cast<void>(madvise(static_cast<char *>(memory) + before, (bytes - before) / page * page, populate_write));
  }
#endif
}

}  // namespace logitport
