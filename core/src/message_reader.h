// Messages of Protocol Buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "message_field.h"

namespace logitport {

// Reads fields of a message of Protocol Buffers: https://protobuf.dev/programming-guides/encoding/.
class MessageReader {
 public:
  explicit MessageReader(std::string_view data) : rest_(data) {}

  // Read the next field: a varint, or bytes. Returns false at the end, and for anything else, also for a field number
  // over 15; then look at `is_at_end`.
  bool next() {
    if (rest_.empty()) {
      return false;
    }
    tag = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    const auto wire_type = static_cast<WireType>(tag & 7U);
    const bool is_varint = wire_type == WireType::varint;
    if (tag >= 0x80U || !read_varint(value, is_varint ? max_bytes : max_length_bytes)) {
      return failed();
    }
    if (is_varint) {
      return true;
    }
    if (wire_type != WireType::length_delimited || value > rest_.size()) {
      return failed();
    }
    bytes = rest_.substr(0, static_cast<std::size_t>(value));
    rest_.remove_prefix(bytes.size());
    return true;
  }

  [[nodiscard]] bool is_at_end() const noexcept { return rest_.empty() && !failed_; }

  // Of the field that was read: `tag` is that of message_fields.h, and its wire type states which of the others is set.
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

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace logitport
