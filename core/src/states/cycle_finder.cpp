#include "cycle_finder.h"

#include <algorithm>
#include <array>

namespace logitport {
namespace {

constexpr std::size_t min_distinct = 12;  // as in builtin_processors/logitport_builtins/loop_guard/rule.py

// The number of ids that equal those one period before when a cycle is complete, for the period with the fewest.
std::int64_t shortest_run(const CycleRule &rule) {
  const auto run = [&rule](std::int64_t period) {
    return std::max((rule.repeats - 1) * period, rule.min_length - period);
  };
  // The first term grows with the period and the second one falls: the least maximum is where they meet.
  const std::int64_t longest = rule.max_period;
  const std::int64_t meeting = std::clamp<std::int64_t>(rule.min_length / rule.repeats, 1, longest);
  return std::min(run(meeting), run(std::min(meeting + 1, longest)));
}

// Whether a block has few distinct ids, as one of a table of zeros.
bool is_plain(const std::int32_t *block, std::int32_t period) {
  std::array<std::int32_t, min_distinct> distinct{};
  std::size_t count = 0;
  for (std::int32_t i = 0; i < period && count < min_distinct; ++i) {
    auto *const end = distinct.begin() + count;
    if (std::find(distinct.begin(), end, block[i]) == end) {
      distinct[count++] = block[i];
    }
  }
  return count < min_distinct;
}

}  // namespace

CycleFinder::CycleFinder(const CycleRule &rule, std::int64_t begin)
    : rule_(rule), begin_(begin), stride_((shortest_run(rule) + 1) / 2), length_(begin), compared_at_(begin) {}

void CycleFinder::advance(const std::int32_t *ids, std::int64_t length) {
  length_ = length;
  for (Candidate &each : candidates_) {
    if (each.broken_at == never && ids[length - 1] != ids[length - 1 - each.cycle.period]) {
      each.broken_at = length;
    }
  }
  if (length >= compared_at_ + stride_) {
    compare_all(ids);
  }
}

void CycleFinder::move(const std::int32_t *ids, std::int64_t length) {
  const bool is_ahead = length > length_;
  length_ = length;
  const bool has_previous = previous_at_ >= 0 && length >= previous_at_ && length < previous_at_ + stride_;
  if (length < compared_at_ && has_previous) {  // they have followed the history up to `compared_at_`
    candidates_.swap(previous_);
    compared_at_ = previous_at_;
    previous_at_ = -1;
  }
  for (Candidate &each : candidates_) {
    if (each.broken_at > length) {
      each.broken_at = never;
    }
  }
  if (is_ahead || length < compared_at_) {
    compare_all(ids);
  }
}

std::optional<Cycle> CycleFinder::found() const noexcept {
  const Candidate *candidate = first_complete();
  return candidate != nullptr ? std::optional(candidate->cycle) : std::nullopt;
}

bool CycleFinder::is_new() const noexcept {
  const Candidate *candidate = first_complete();
  return candidate != nullptr && candidate->complete_at == length_;
}

const CycleFinder::Candidate *CycleFinder::first_complete() const noexcept {
  for (const Candidate &each : candidates_) {
    if (each.broken_at == never && each.complete_at <= length_) {
      return &each;
    }
  }
  return nullptr;
}

std::size_t CycleFinder::bytes() const noexcept {
  return (candidates_.capacity() + previous_.capacity()) * sizeof(Candidate) + runs_.capacity() * sizeof(std::int64_t);
}

// Find the periods with cycles that are complete, or may be before all periods are compared again.
//
// How many ids repeat after a period, read backwards from the end, is the Z-function of the reversed output: a run of
// one period that reaches far back shows the runs of longer periods (Gusfield, Algorithms on Strings, 1997, 1.4). So
// all periods together read an id of the longest run once. A run for each period apart takes milliseconds for some
// texts.
void CycleFinder::compare_all(const std::int32_t *ids) {
  previous_.swap(candidates_);
  candidates_.clear();
  previous_at_ = compared_at_;
  compared_at_ = length_;
  if (length_ == begin_) {  // no id, and no pointer to the last one
    return;
  }
  const std::int32_t *last = ids + length_ - 1;
  const auto longest = static_cast<std::int32_t>(std::min<std::int64_t>(rule_.max_period, length_ - begin_ - 1));
  runs_.assign(static_cast<std::size_t>(std::max(longest, 0)) + 1, 0);
  std::int64_t reach = 0;  // of the run that goes back furthest: its period, and its length
  std::int32_t reaching = 0;
  for (std::int32_t period = 1; period <= longest; ++period) {
    std::int64_t run = 0;
    if (period < reach) {
      run = std::min(runs_[static_cast<std::size_t>(period - reaching)], reach - period);
    } else if (last[-period] != *last) {
      continue;
    }
    if (period + run >= reach) {
      run = run_of(ids, period, run);
      reach = period + run;
      reaching = period;
    }
    runs_[static_cast<std::size_t>(period)] = run;
    std::int64_t least = std::max(rule_.repeats * period, rule_.min_length);
    const std::int64_t begin = length_ - period - run;
    // The cycle may be complete before the next time.
    if (run == 0 || begin > length_ - least + stride_ - 1 || is_multiple(period)) {
      continue;
    }
    if (is_plain(ids + length_ - period, period)) {
      least = std::max(least, rule_.plain_repeats * period);
    }
    candidates_.push_back({{period, begin}, begin + least, never});
  }
}

// How many ids at the end equal those a period before, if so many are known to. A long cycle is not read again, unless
// a rewind has left less than a period and one id of it.
std::int64_t CycleFinder::run_of(const std::int32_t *ids, std::int32_t period, std::int64_t known) const noexcept {
  for (const Candidate &each : previous_) {
    if (each.cycle.period == period && each.broken_at == never && length_ - each.cycle.begin > period) {
      return length_ - period - each.cycle.begin;
    }
  }
  std::int64_t begin = length_ - period - known;
  while (begin > begin_ && ids[begin - 1] == ids[begin - 1 + period]) {
    --begin;
  }
  return length_ - period - begin;
}

// Whether a cycle with a shorter period is complete whenever one with this period is. Both go on and end at the same
// ids then: where the shorter one began, ids differ that lie a longer period further on, too.
bool CycleFinder::is_multiple(std::int32_t period) const noexcept {
  return std::any_of(candidates_.begin(), candidates_.end(), [this, period](const Candidate &each) {
    return length_ - each.cycle.begin >= period + each.cycle.period && period % each.cycle.period == 0;
  });
}

}  // namespace logitport
