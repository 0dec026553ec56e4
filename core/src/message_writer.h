// Messages of Protocol Buffers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace logitport {

// Writes fields of a message of Protocol Buffers: https://protobuf.dev/programming-guides/encoding/.
class MessageWriter {
 public:
  void varint(int field, std::uint64_t value) {
    put(static_cast<std::uint64_t>(field) << 3U);
    put(value);
  }

  void bytes(int field, std::string_view value) {
    put((static_cast<std::uint64_t>(field) << 3U) | 2U);
    put(value.size());
    data_.append(value);
  }

  // Nothing for an empty column, as Python's protobuf.
  template <typename T>
  void column(int field, const std::vector<T> &values) {
    if (!values.empty()) {
      bytes(field, {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)});
    }
  }

  [[nodiscard]] const std::string &data() const noexcept { return data_; }

 private:
  void put(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) {
      data_.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
    }
    data_.push_back(static_cast<char>(value));
  }

  std::string data_;
};

}  // namespace logitport
