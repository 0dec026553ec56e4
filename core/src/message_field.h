// The number and the wire type of a field: https://protobuf.dev/programming-guides/encoding/.
#pragma once

#include <cstdint>

namespace logitport {

enum class WireType : std::uint32_t { varint = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5 };

// A type for each wire type, so that the compiler refuses to write a value of another one.
template <WireType Type>
struct Field {
  std::uint32_t number;

  // What stands before a value.
  [[nodiscard]] constexpr std::uint32_t tag() const noexcept { return number << 3U | static_cast<std::uint32_t>(Type); }
};

using VarintField = Field<WireType::varint>;
using BytesField = Field<WireType::length_delimited>;  // also of strings and messages
using FloatField = Field<WireType::fixed32>;

}  // namespace logitport
