// One row of logits in the memory of the CPU, of a datatype of floats.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "columns.h"
#include "edits_reader.h"

namespace logitport {

enum class Datatype { fp32, fp16, bf16 };

// Bytes of an element.
constexpr std::int64_t size_of(Datatype datatype) noexcept { return datatype == Datatype::fp32 ? 4 : 2; }

// Logits of any strides, in bytes. No two elements share memory, and each is aligned.
struct Logits {
  char *data = nullptr;
  LogitsShape shape;
  std::int64_t row_stride = 0, id_stride = 0;
  Datatype datatype = Datatype::fp32;
};

// One row. `Float` is a class of floats.h. Its elements are floats, and here they are bits, so they are copied: to read
// them by a pointer to another type is undefined.
template <typename Float>
class Row {
 public:
  using Bits = typename Float::Bits;

  Row(const Logits &logits, std::int64_t row) noexcept
      : data_(logits.data + row * logits.row_stride), width_(logits.shape.width), stride_(logits.id_stride) {}

  [[nodiscard]] Bits get(std::int64_t id) const noexcept {
    Bits bits = 0;
    std::memcpy(&bits, data_ + id * stride_, sizeof bits);
    return bits;
  }

  void set(std::int64_t id, Bits bits) const noexcept { std::memcpy(data_ + id * stride_, &bits, sizeof bits); }
  void deny(std::int64_t id) const noexcept { set(id, Float::minus_inf); }

  void deny_all() const noexcept {
    const Row row = *this;  // a copy, which the writes cannot change: the compiler uses vector instructions
    if (row.is_contiguous()) {
      for (std::int64_t id = 0; id < row.width_; ++id) {
        std::memcpy(row.data_ + id * element, &Float::minus_inf, sizeof(Bits));
      }
      return;
    }
    for (std::int64_t id = 0; id < row.width_; ++id) {
      row.deny(id);
    }
  }

  void deny(const Column<std::int32_t> &ids) const noexcept {
    for (std::int64_t index = 0; index < ids.size(); ++index) {
      deny(ids[index]);
    }
  }

  void allow(const Column<std::int32_t> &ids) const {
    std::vector<Bits> kept;
    kept.reserve(static_cast<std::size_t>(ids.size()));
    for (std::int64_t index = 0; index < ids.size(); ++index) {
      kept.push_back(get(ids[index]));
    }
    deny_all();
    for (std::int64_t index = 0; index < ids.size(); ++index) {
      set(ids[index], kept[static_cast<std::size_t>(index)]);
    }
  }

  void mask(const Column<std::int32_t> &words) const noexcept {
    for (std::int64_t index = 0; index < words.size(); ++index) {
      const auto word = static_cast<std::uint32_t>(words[index]);
      const std::int64_t first = 32 * index;
      const std::int64_t count = std::min<std::int64_t>(32, width_ - first);
      if (word == 0xFFFFFFFFU) {
        continue;  // most words of a mask are all ones or all zeros
      }
      if (is_contiguous() && count == 32) {
        mask_word(data_ + first * element, word);
        continue;
      }
      for (std::int64_t bit = 0; bit < count; ++bit) {
        if (((word >> bit) & 1U) == 0) {
          deny(first + bit);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t element = sizeof(Bits);

  [[nodiscard]] bool is_contiguous() const noexcept { return stride_ == element; }

  // GCC's and Clang's vectors, because GCC leaves this loop scalar for elements of 16 bits, 50 times as slow.
  static void mask_word(char *elements, std::uint32_t word) noexcept {
    using Vector __attribute__((vector_size(16))) = Bits;
    constexpr unsigned lanes = 16 / sizeof(Bits);
    Vector bit_of_lane{};
    for (unsigned lane = 0; lane < lanes; ++lane) {
      bit_of_lane[lane] = static_cast<Bits>(1U << lane);
    }
    for (unsigned first = 0; first < 32; first += lanes) {
      const auto part = static_cast<Bits>((word >> first) & ((1U << lanes) - 1U));
      const Vector bits = Vector{} + part;
      const auto denied = reinterpret_cast<Vector>((bits & bit_of_lane) == 0);
      Vector values;
      char *part_of_elements = elements + first * sizeof(Bits);
      std::memcpy(&values, part_of_elements, sizeof values);
      values = (values & ~denied) | (denied & Float::minus_inf);
      std::memcpy(part_of_elements, &values, sizeof values);
    }
  }

  char *data_;
  std::int64_t width_, stride_;
};

}  // namespace logitport
