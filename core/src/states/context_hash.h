// Hashes of contexts. A context is the ids before a position, as many as an n-gram has before its last one.
#pragma once

#include <cstdint>

namespace logitport {

// The polynomial rolling hash of Karp and Rabin (1987), modulo the prime 2**61 - 1, with a base that each process draws
// at random: with a prime modulus, ids with equal hashes cannot be prepared (with 2**64 they can, for any base).
//
// The hash of the ids t[0], …, t[k - 1] is the sum of t[i] * base**(k - 1 - i). It is kept as a number below 2**61 + 8:
// the exact remainder takes longer, and an index of a long prompt waits for one hash before the next. `bucket` computes
// it.
class ContextHash {
 public:
  // For contexts of `count` ids, 0 or more.
  explicit ContextHash(std::int64_t count);

  // The next context: appends an id, and removes the first one (0 while there are fewer than `count`).
  [[nodiscard]] std::uint64_t roll(std::uint64_t context, std::int32_t leaving_id,
                                   std::int32_t joining_id) const noexcept {
    const std::uint64_t change = as_number(joining_id) + 2 * prime - multiply(as_number(leaving_id), leaving_);
    return fold(multiply(context, base_) + change);
  }
  // The context before: the inverse of `roll`.
  [[nodiscard]] std::uint64_t unroll(std::uint64_t context, std::int32_t leaving_id,
                                     std::int32_t joining_id) const noexcept {
    const std::uint64_t sum = context + prime - as_number(joining_id) + multiply(as_number(leaving_id), leaving_);
    return fold(multiply(fold(sum), inverse_));
  }
  // `bits` bits, 1 or more, that depend on the whole hash: multiply-shift of Dietzfelbinger et al. (1997).
  [[nodiscard]] std::uint64_t bucket(std::uint64_t context, int bits) const noexcept {
    const std::uint64_t remainder = context >= prime ? context - prime : context;
    return (remainder * odd_) >> (64 - bits);
  }

 private:
  static constexpr std::uint64_t prime = (std::uint64_t{1} << 61) - 1;
  __extension__ using Wide = unsigned __int128;

  static std::uint64_t as_number(std::int32_t id) noexcept { return static_cast<std::uint32_t>(id); }
  // An equal number modulo the prime, below 2**61 + 8.
  static std::uint64_t fold(std::uint64_t number) noexcept { return (number & prime) + (number >> 61); }
  // An equal number modulo the prime: below 2**62 + 8 if one factor is below 2**61 + 8 and the other one below 2**61;
  // below 2**61 + 2**32 if that one is an id.
  static std::uint64_t multiply(std::uint64_t first, std::uint64_t second) noexcept {
    const Wide product = Wide{first} * second;
    return (static_cast<std::uint64_t>(product) & prime) + static_cast<std::uint64_t>(product >> 61);
  }
  static std::uint64_t power(std::uint64_t base, std::uint64_t exponent) noexcept;

  std::uint64_t base_;
  std::uint64_t inverse_;
  std::uint64_t leaving_;
  std::uint64_t odd_;
};

}  // namespace logitport
