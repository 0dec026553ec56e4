// The event of states that deny ids after some histories: at the first row that does.
#pragma once

#include <algorithm>
#include <cstdint>

namespace logitport {

// Finds the first row of an output that denies ids. It follows from the history alone, although a session may compute
// some rows never, or several times. A length of the history names its row.
// The counterpart of the class of this name in builtin_processors/logitport_builtins/first_denial.py.
class FirstDenial {
 public:
  // Whether the row at this length, which `denies` ids or not, is the first from `begin` on that does.
  // `denies_at(length)` states it for an earlier row, if no row before that one denies ids. Each row is looked up once,
  // and only if the first row that was computed and denies ids comes after rows that were not.
  template <typename DeniesAt>
  [[nodiscard]] bool is_at(std::int64_t begin, std::int64_t length, bool denies, const DeniesAt &denies_at) {
    if (first_ < 0) {
      checked_ = std::max(checked_, begin);
      if (!denies) {
        checked_ += checked_ == length ? 1 : 0;
        return false;
      }
      while (checked_ < length && !denies_at(checked_)) {
        ++checked_;
      }
      first_ = checked_;
    }
    return first_ == length;
  }

  // Follow a history that was cut back to this length.
  void rewind(std::int64_t length) noexcept {
    checked_ = std::min(checked_, length + 1);
    if (first_ > length) {
      first_ = -1;
    }
  }

 private:
  std::int64_t checked_ = 0;  // no row below it denies ids
  std::int64_t first_ = -1;   // negative: not known
};

}  // namespace logitport
