// Columns of little-endian elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace logitport {

// Elements at any address: a column in the middle of a message is not aligned. The memory is that of the caller.
template <typename T>
class Column {
 public:
  Column() = default;
  Column(const void *data, std::int64_t size) : data_(static_cast<const char *>(data)), size_(size) {}

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

  [[nodiscard]] std::string_view bytes() const noexcept { return {data_, static_cast<std::size_t>(size_) * sizeof(T)}; }

  // The index is not checked.
  [[nodiscard]] T operator[](std::int64_t index) const noexcept {
    T value;
    std::memcpy(&value, data_ + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  // `count` elements from `first` on, which must be in the column.
  [[nodiscard]] Column part(std::int64_t first, std::int64_t count) const noexcept {
    return {data_ + first * static_cast<std::int64_t>(sizeof(T)), count};
  }

 private:
  const char *data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace logitport
