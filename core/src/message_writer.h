// Messages of Protocol Buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "message_field.h"

namespace logitport {

// Writes fields of a message of Protocol Buffers: https://protobuf.dev/programming-guides/encoding/.
class MessageWriter {
 public:
  void varint(VarintField field, std::uint64_t value) {
    put(field.tag());
    put(value);
  }

  void bytes(BytesField field, std::string_view value) {
    begin(field, value.size());
    data_.append(value);
  }

  // Nothing for an empty column, as Python's protobuf.
  template <typename T>
  void column(BytesField field, const std::vector<T> &values) {
    if (!values.empty()) {
      bytes(field, {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)});
    }
  }

  // The beginning of a field whose value of so many bytes is written next, field by field.
  void begin(BytesField field, std::size_t size) {
    put(field.tag());
    put(size);
  }

  // Append what another writer has written.
  void append(const MessageWriter &fields) { data_.append(fields.data_); }
  // Get memory for a message of this size. Keeps the memory if there is more: earlier C++ libraries would free it.
  void reserve(std::size_t size) {
    if (size > data_.capacity()) {
      data_.reserve(size);
    }
  }

  // Bytes that `column` writes.
  template <typename T>
  [[nodiscard]] static std::size_t size_of_column(BytesField field, const std::vector<T> &values) {
    const std::size_t size = values.size() * sizeof(T);
    return values.empty() ? 0 : size_of(field.tag()) + size_of(size) + size;
  }

  void clear() noexcept { data_.clear(); }  // keeps the memory
  void resize(std::size_t size) { data_.resize(size); }
  // Write a number, little-endian, over 4 bytes.
  void overwrite(std::size_t offset, std::uint32_t value) { std::memcpy(&data_[offset], &value, sizeof value); }

  [[nodiscard]] const std::string &data() const noexcept { return data_; }
  [[nodiscard]] std::string take() { return std::move(data_); }

 private:
  // Bytes that `put` writes.
  [[nodiscard]] static std::size_t size_of(std::uint64_t value) {
    std::size_t size = 1;
    for (; value >= 0x80U; value >>= 7U) {
      ++size;
    }
    return size;
  }

  void put(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) {
      data_.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
    }
    data_.push_back(static_cast<char>(value));
  }

  std::string data_;
};

}  // namespace logitport
