// Messages of Protocol Buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "message_field.h"

namespace logitport {

// Reads fields of a message of Protocol Buffers: https://protobuf.dev/programming-guides/encoding/.
class MessageReader {
 public:
  explicit MessageReader(std::string_view data) : rest_(data) {}

  // Read the next field: a number, or bytes. Returns false at the end, and for anything else; then look at `is_at_end`.
  bool next() {
    if (rest_.empty()) {
      return false;
    }
    if (!read_varint(value, max_length_bytes) || value < 8 || value > std::numeric_limits<std::uint32_t>::max()) {
      return failed();
    }
    tag = static_cast<std::uint32_t>(value);
    switch (static_cast<WireType>(tag & 7U)) {
      case WireType::varint:
        return read_varint(value, max_bytes) || failed();
      case WireType::length_delimited:
        return (read_varint(value, max_length_bytes) && read_bytes(value)) || failed();
      case WireType::fixed32:
        return read_bytes(sizeof(std::uint32_t)) || failed();
      case WireType::fixed64:
        return read_bytes(sizeof(std::uint64_t)) || failed();
    }
    return failed();
  }

  [[nodiscard]] bool is_at_end() const noexcept { return rest_.empty() && !failed_; }

  // Of the field that was read: `tag` is that of message_fields.h. A varint has a `value`, another field `bytes`.
  std::uint32_t tag = 0;
  std::uint64_t value = 0;
  std::string_view bytes;

 private:
  bool failed() {
    failed_ = true;
    return false;
  }

  // Of a number, and of a length. Protobuf refuses longer ones.
  static constexpr unsigned max_bytes = 10, max_length_bytes = 5;

  bool read_varint(std::uint64_t &number, unsigned limit) {
    number = 0;
    for (unsigned shift = 0; shift < 7 * limit && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && byte > 1) {
        return false;  // over 64 bits
      }
      number |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80U) {
        return true;
      }
    }
    return false;
  }

  bool read_bytes(std::uint64_t size) {
    if (size > rest_.size()) {
      return false;
    }
    bytes = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(bytes.size());
    return true;
  }

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace logitport
