#include "context_hash.h"

#include <random>

namespace logitport {
namespace {

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) ^ device();
}

}  // namespace

ContextHash::ContextHash(std::int64_t count) {
  static const std::uint64_t base = random_number() % (prime - 2) + 2;
  static const std::uint64_t inverse = power(base, prime - 2);  // Fermat's little theorem
  static const std::uint64_t odd = random_number() | 1U;
  base_ = base;
  inverse_ = inverse;
  odd_ = odd;
  leaving_ = power(base, static_cast<std::uint64_t>(count));
}

std::uint64_t ContextHash::power(std::uint64_t base, std::uint64_t exponent) noexcept {
  const auto remainder = [](std::uint64_t number) { return fold(number) % prime; };
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1U) {
    if ((exponent & 1U) != 0) {
      result = remainder(multiply(result, base));
    }
    base = remainder(multiply(base, base));
  }
  return result;
}

}  // namespace logitport
