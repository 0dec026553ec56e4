// The checksum of a token history.
#pragma once

#include <cstddef>
#include <cstdint>

namespace logitport {

constexpr std::uint32_t crc_polynomial = 0xEDB88320U;  // IEEE 802.3, bits reversed

// Extend a checksum by ids: CRC-32 (IEEE 802.3, as in zlib) of little-endian int32. Start with crc 0.
std::uint32_t extend_crc(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept;
// The same, as on a processor without carry-less multiplication.
std::uint32_t extend_crc_by_table(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept;

}  // namespace logitport
