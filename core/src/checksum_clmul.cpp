#include "checksum_clmul.h"

#ifdef __x86_64__

#include <immintrin.h>

#include <array>

#include "checksum.h"

// Without a table: after a forward pass of the model, none of a table's lines would be in the cache.
// Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", 2009.
#define LOGITPORT_CLMUL __attribute__((target("pclmul,sse4.1")))

namespace logitport {
namespace {

constexpr std::uint64_t modulus = (std::uint64_t{crc_polynomial} << 1U) | 1U;
constexpr std::size_t block = 4;  // ids in a register
constexpr std::size_t lanes = 4;

// x**exponent modulo the polynomial. Shifted, because the product of reversed numbers is one bit too low.
constexpr std::uint64_t power(int exponent) noexcept {
  std::uint32_t remainder = std::uint32_t{1} << 31U;
  for (int i = 0; i < exponent; ++i) {
    remainder = (remainder >> 1U) ^ ((remainder & 1U) != 0 ? crc_polynomial : 0U);
  }
  return std::uint64_t{remainder} << 1U;
}

// The inverse of the modulus as a power series, 33 bits: x**64 divided by the polynomial.
constexpr std::uint64_t quotient() noexcept {
  std::uint64_t inverse = 0;
  std::uint64_t rest = 1;
  for (unsigned bit = 0; bit < 33; ++bit) {
    if ((rest & 1U) != 0) {
      inverse |= std::uint64_t{1} << bit;
      rest ^= modulus;
    }
    rest >>= 1U;
  }
  return inverse;
}

constexpr auto as_signed(std::uint64_t number) noexcept { return static_cast<long long>(number); }

// Barrett reduction of the 32 bits before 32 zeros.
LOGITPORT_CLMUL inline std::uint32_t follow_by_word(std::uint32_t bits) noexcept {
  const __m128i constants = _mm_set_epi64x(as_signed(modulus), as_signed(quotient()));
  const __m128i value = _mm_cvtsi32_si128(static_cast<int>(bits));
  const __m128i multiple = _mm_clmulepi64_si128(value, constants, 0x00);
  const __m128i low = _mm_cvtsi32_si128(_mm_cvtsi128_si32(multiple));
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_clmulepi64_si128(low, constants, 0x10), 1));
}

LOGITPORT_CLMUL inline __m128i load(const std::int32_t *ids) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(ids));
}

// The register moved on by the bits of the constants, and added to what stands there.
LOGITPORT_CLMUL inline __m128i fold(__m128i folded, __m128i constants, __m128i next) noexcept {
  const __m128i first = _mm_clmulepi64_si128(folded, constants, 0x00);
  const __m128i second = _mm_clmulepi64_si128(folded, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

LOGITPORT_CLMUL inline __m128i fold_constants(int bits) noexcept {
  return bits == 512 ? _mm_set_epi64x(as_signed(power(512 - 32)), as_signed(power(512 + 32)))
                     : _mm_set_epi64x(as_signed(power(128 - 32)), as_signed(power(128 + 32)));
}

LOGITPORT_CLMUL std::uint32_t extend_words(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    crc = follow_by_word(crc ^ static_cast<std::uint32_t>(ids[i]));
  }
  return crc;
}

// `count`: at least that of all lanes.
LOGITPORT_CLMUL std::uint32_t extend_lanes(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept {
  std::array<__m128i, lanes> folded = {load(ids), load(ids + block), load(ids + 2 * block), load(ids + 3 * block)};
  folded[0] = _mm_xor_si128(folded[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  std::size_t position = lanes * block;
  const __m128i by_lanes = fold_constants(512);
  for (; position + lanes * block <= count; position += lanes * block) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      folded[lane] = fold(folded[lane], by_lanes, load(ids + position + lane * block));
    }
  }
  const __m128i by_one = fold_constants(128);
  __m128i all = folded[0];
  for (std::size_t lane = 1; lane < lanes; ++lane) {
    all = fold(all, by_one, folded[lane]);
  }
  // What is left has the checksum of all the ids before it.
  std::array<std::int32_t, block> last{};
  _mm_storeu_si128(reinterpret_cast<__m128i *>(last.data()), all);
  return extend_words(extend_words(0, last.data(), block), ids + position, count - position);
}

}  // namespace

bool has_clmul() noexcept {
  static const bool has = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return has;
}

std::uint32_t extend_crc_clmul(std::uint32_t crc, const std::int32_t *ids, std::size_t count) noexcept {
  return count < lanes * block ? ~extend_words(~crc, ids, count) : ~extend_lanes(~crc, ids, count);
}

}  // namespace logitport

#else

namespace logitport {

bool has_clmul() noexcept { return false; }

std::uint32_t extend_crc_clmul(std::uint32_t crc, const std::int32_t * /*ids*/, std::size_t /*count*/) noexcept {
  return crc;
}

}  // namespace logitport

#endif
