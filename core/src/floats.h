// Floats as their bits, for each datatype of logits: -inf, and the sum with a float32, rounded to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace logitport {

inline float float_of(std::uint32_t bits) noexcept {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of(float value) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Fp32 {
  using Bits = std::uint32_t;
  static constexpr Bits minus_inf = 0xFF800000U;
  static bool is_nan(Bits bits) noexcept { return (bits & 0x7FFFFFFFU) > 0x7F800000U; }
  static Bits add(Bits bits, float value) noexcept { return bits_of(float_of(bits) + value); }
};

struct Bf16 {
  using Bits = std::uint16_t;
  static constexpr Bits minus_inf = 0xFF80U;
  static bool is_nan(Bits bits) noexcept { return (bits & 0x7FFFU) > 0x7F80U; }
  static Bits add(Bits bits, float value) noexcept {
    const std::uint32_t sum = bits_of(float_of(std::uint32_t{bits} << 16U) + value);
    return static_cast<Bits>((sum + 0x7FFFU + ((sum >> 16U) & 1U)) >> 16U);  // no NaN: see `apply_edits`
  }
};

struct Fp16 {
  using Bits = std::uint16_t;
  static constexpr Bits minus_inf = 0xFC00U;
  static bool is_nan(Bits bits) noexcept { return (bits & 0x7FFFU) > 0x7C00U; }
  static Bits add(Bits bits, float value) noexcept { return narrow(widen(bits) + value); }

  // Exact. Not the compiler's _Float16: older compilers lack it.
  static float widen(Bits bits) noexcept {
    const std::uint32_t sign = (bits & 0x8000U) << 16U;
    const std::uint32_t magnitude = bits & 0x7FFFU;
    if (magnitude < 0x0400U) {  // zero, or subnormal: a multiple of 2^-24
      return float_of(bits_of(static_cast<float>(magnitude) * 0x1p-24F) | sign);
    }
    const std::uint32_t exponent = magnitude >= 0x7C00U ? 0x7F800000U : 0U;  // of infinities and NaN
    return float_of(((magnitude << 13U) + (exponent != 0 ? 0U : 0x38000000U)) | exponent | sign);
  }

  static Bits narrow(float value) noexcept {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16U) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    std::uint32_t result = 0;
    if (magnitude > 0x7F800000U) {  // NaN: keep the upper bits; the first is set after a sum
      result = 0x7C00U | ((magnitude >> 13U) & 0x3FFU);
    } else if (magnitude >= 0x477FF000U) {  // 65520 and more
      result = 0x7C00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 leaves a multiple of 2^-24 in the lowest bits
      result = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    } else {
      result = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
    }
    return static_cast<Bits>(result | sign);
  }
};

}  // namespace logitport
