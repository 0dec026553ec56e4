// The checksum of a token history by carry-less multiplication, which x86 processors have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace logitport {

// Whether this processor has the instructions.
[[nodiscard]] bool has_clmul() noexcept;

// The same as `extend_crc`. Only if `has_clmul`.
std::uint32_t extend_crc_clmul(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept;

}  // namespace logitport
