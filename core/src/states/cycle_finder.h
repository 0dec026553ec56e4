// Finds whether the last ids of a history repeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace logitport {

// The last ids are a cycle if they are `repeats` equal blocks, 2 or more, of at most `max_period` ids, 1 or more, and
// at least `min_length` ids. A block with few distinct ids must be repeated `plain_repeats` times, if that is more.
struct CycleRule {
  std::int64_t repeats;
  std::int32_t max_period;
  std::int64_t min_length;
  std::int64_t plain_repeats;
};

// The ids from position `begin` to the end of the history repeat after `period` ids.
struct Cycle {
  std::int32_t period;
  std::int64_t begin;
};

// Follows a history, and keeps the periods that are complete, or will be soon.
//
// A cycle that is complete has a run of ids that equal the ids one period before, which is long for every period. So
// all periods are compared with the history's end only once in `stride_` ids, half of the shortest such run. Most texts
// then leave no period with a cycle that may be complete before the next time. The others are compared with each new
// id. So an id takes max_period / stride_ comparisons, however long the history is, and no memory. Lengths of runs by
// period take max_period comparisons. An index of the last ids by their hash takes memory, and must be undone by a
// rewind.
class CycleFinder {
 public:
  // For the ids of a history from position `begin` on. There are none yet.
  CycleFinder(const CycleRule &rule, std::int64_t begin);

  // Follow a history that has one id more: `ids[length - 1]`.
  void advance(const std::int32_t *ids, std::int64_t length);
  // Go to a shorter length of the history; at first, to any.
  void move(const std::int32_t *ids, std::int64_t length);

  // The complete cycle with the shortest period.
  [[nodiscard]] std::optional<Cycle> found() const noexcept;
  // Whether that cycle was not complete with an id less.
  [[nodiscard]] bool is_new() const noexcept;
  [[nodiscard]] std::int64_t begin() const noexcept { return begin_; }
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }
  // Whether the next id is compared with all periods.
  [[nodiscard]] bool is_due() const noexcept { return length_ + 1 >= compared_at_ + stride_; }
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

  struct Candidate {
    Cycle cycle;
    std::int64_t complete_at;  // length of the history
    std::int64_t broken_at;    // length of the history with the first id that breaks the cycle
  };

  [[nodiscard]] const Candidate *first_complete() const noexcept;
  void compare_all(const std::int32_t *ids);
  [[nodiscard]] std::int64_t run_of(const std::int32_t *ids, std::int32_t period, std::int64_t known) const noexcept;
  [[nodiscard]] bool is_multiple(std::int32_t period) const noexcept;

  CycleRule rule_;
  std::int64_t begin_;
  std::int64_t stride_;
  std::int64_t length_;
  std::int64_t compared_at_;           // length at which all periods were compared
  std::vector<Candidate> candidates_;  // by ascending period
  // Those of the time before, and `compared_at_` then; negative if there are none. A tree of drafts goes back to them
  // for each of its branches.
  std::vector<Candidate> previous_;
  std::int64_t previous_at_ = -1;
  std::vector<std::int64_t> runs_;  // by period, while all periods are compared
};

}  // namespace logitport
