#include "checksum.h"

#include <array>

#include "checksum_clmul.h"

namespace logitport {
namespace {

// For processors without carry-less multiplication.
constexpr std::size_t slices = 8;

using Table = std::array<std::array<std::uint32_t, 256>, slices>;

constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? crc_polynomial : 0U);
    }
    table[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < slices; ++slice) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = table[slice - 1][byte];
      table[slice][byte] = (before >> 8U) ^ table[0][before & 0xFFU];
    }
  }
  return table;
}

constexpr Table table = make_table();

// The part of a word's four bytes. `after` + 3 bytes follow the lowest one.
std::uint32_t word(std::uint32_t value, std::size_t after) noexcept {
  return table[after + 3][value & 0xFFU] ^ table[after + 2][(value >> 8U) & 0xFFU] ^
         table[after + 1][(value >> 16U) & 0xFFU] ^ table[after][value >> 24U];
}

}  // namespace

// Slicing by 8: Kounavis and Berry, "A Systematic Approach to Building High Performance Software-Based CRC Generators",
// 2005.
std::uint32_t extend_crc_by_table(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept {
  crc = ~crc;
  std::size_t position = 0;
  for (; position + 2 <= count; position += 2) {
    crc = word(crc ^ static_cast<std::uint32_t>(ids[position]), 4) ^
          word(static_cast<std::uint32_t>(ids[position + 1]), 0);
  }
  if (position < count) {
    crc = word(crc ^ static_cast<std::uint32_t>(ids[position]), 0);
  }
  return ~crc;
}

std::uint32_t extend_crc(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept {
  return has_clmul() ? extend_crc_clmul(crc, ids, count) : extend_crc_by_table(crc, ids, count);
}

}  // namespace logitport
