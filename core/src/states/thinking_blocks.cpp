#include "thinking_blocks.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace logitport {
namespace {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
constexpr double largest_bias = 20.0;  // of the end tag, at the last id before the budget

PhaseTags tags_of(const ThinkingLimit &limit) {
  return {
      {{limit.start, Phase::thinking, -1, false}, {limit.end, Phase::answer, static_cast<int>(Phase::thinking), false}},
      Phase::answer};
}

// How many of these ids, not all, the open block of so many ids ends with.
std::size_t count_written(const History &history, std::int64_t used, const std::vector<std::int32_t> &ids) {
  std::int64_t written = std::min(used, static_cast<std::int64_t>(ids.size()) - 1);
  const std::int32_t *after = history.data() + history.length();
  while (!std::equal(ids.begin(), ids.begin() + written, after - written)) {
    --written;
  }
  return static_cast<std::size_t>(written);
}

}  // namespace

ThinkingBlocks::ThinkingBlocks(const History &history, ThinkingLimit limit)
    : limit_(std::move(limit)), closing_(limit_.end_text), tracker_(history, tags_of(limit_)) {
  closing_.insert(closing_.end(), limit_.end.begin(), limit_.end.end());
  update();
}

void ThinkingBlocks::advance(const History &history, std::int32_t /*token_id*/) {
  tracker_.read(history);
  update();
}

void ThinkingBlocks::rewind(const History &history) {
  tracker_.rewind(history);
  update();
}

void ThinkingBlocks::restart(const History &history) {
  tracker_.restart(history);
  update();
}

void ThinkingBlocks::edit(const History &history, EditsWriter &edits) {
  if (history.length() < due_) {
    return;
  }
  const std::int64_t used = history.length() - tracker_.begin();
  if (used >= limit_.budget) {
    if (used == std::max(limit_.budget, history.prompt_length() - tracker_.begin())) {
      edits.event(budget_hit, used);
    }
    edits.force(closing_id(history));
  } else if (used < limit_.min_thinking) {
    edits.deny(limit_.end.data(), 1);
  } else if (limit_.soft_from >= 0 && used >= limit_.soft_from) {
    const double share =
        static_cast<double>(used - limit_.soft_from + 1) / static_cast<double>(limit_.budget - limit_.soft_from);
    const auto value = static_cast<float>(largest_bias * share);
    edits.bias(&limit_.end[count_written(history, used, limit_.end)], &value, 1);
  }
}

std::size_t ThinkingBlocks::bytes() const noexcept {
  return (limit_.start.capacity() + limit_.end.capacity() + limit_.end_text.capacity() + closing_.capacity()) *
             sizeof(std::int32_t) +
         tracker_.bytes();
}

void ThinkingBlocks::update() noexcept {
  due_ = never;
  if (tracker_.phase() == Phase::thinking) {
    const std::int64_t begin = tracker_.begin();
    const std::int64_t first = limit_.soft_from < 0 ? limit_.budget : limit_.soft_from;
    if (limit_.min_thinking > 0) {
      due_ = begin;
    } else if (first < never - begin) {
      due_ = begin + first;
    }
  }
}

std::int64_t ThinkingBlocks::opened_at(std::int64_t length) const noexcept {
  const PhaseTracker::Block block = tracker_.block_at(length);
  return block.phase() == Phase::thinking ? block.begin() : 0;
}

std::int32_t ThinkingBlocks::closing_id(const History &history) const {
  const std::int64_t used = history.length() - tracker_.begin();
  const std::size_t written = count_written(history, used, closing_);
  const std::size_t of_end = count_written(history, used, limit_.end);
  if (of_end > written) {  // the model has begun the end tag itself
    return limit_.end[of_end];
  }
  const bool has_output = history.length() > history.prompt_length();
  const bool has_newline = has_output && limit_.newline && history.at(history.length() - 1) == *limit_.newline;
  return written == 0 && limit_.newline && !has_newline ? *limit_.newline : closing_[written];
}

}  // namespace logitport
