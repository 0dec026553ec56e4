#include "loop_breaker.h"

#include <algorithm>
#include <utility>

#include "../errors.h"

namespace logitport {
namespace {

[[noreturn]] void fail() { throw Error(ErrorCode::internal, "the loop breaker did not follow this history"); }

}  // namespace

LoopBreaker::LoopBreaker(const History &history, const CycleRule &rule, LoopAction action,
                         std::vector<std::int32_t> ends)
    : rule_(rule), finder_(rule, history.prompt_length()), action_(action), ends_(std::move(ends)) {
  finder_.move(history.data(), history.length());
}

LoopBreaker::LoopBreaker(const History &history, const CycleRule &rule, ThinkingLimit limit)
    : rule_(rule), finder_(rule, history.prompt_length()), action_(LoopAction::end_thinking) {
  record_loops(history, blocks_.emplace(history, std::move(limit)));
}

void LoopBreaker::advance(const History &history, std::int32_t token_id) {
  if (history.length() != finder_.length() + 1) {
    fail();
  }
  finder_.advance(history.data(), history.length());
  if (blocks_) {
    blocks_->advance(history, token_id);
    record_loop(*blocks_);
  }
}

void LoopBreaker::rewind(const History &history) {
  if (history.length() > finder_.length() || history.length() < finder_.begin()) {
    fail();
  }
  finder_.move(history.data(), history.length());
  if (blocks_) {
    blocks_->rewind(history);
    while (!loops_.empty() && loops_.back() > history.length()) {
      loops_.pop_back();
    }
  }
}

void LoopBreaker::restart(const History &history) {
  finder_ = CycleFinder(rule_, history.prompt_length());
  if (blocks_) {
    loops_.clear();
    blocks_->restart(history);
    record_loops(history, *blocks_);
  } else {
    finder_.move(history.data(), history.length());
  }
}

void LoopBreaker::prefetch(const History &history) noexcept {
  if (finder_.is_due()) {
    const std::int64_t count = std::min<std::int64_t>(rule_.max_period, history.length());
    prefetch_to_read(history.data() + history.length() - count, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  }
}

void LoopBreaker::edit(const History &history, EditsWriter &edits) {
  if (history.length() != finder_.length()) {
    fail();
  }
  if (blocks_) {
    const std::int64_t opened_at = blocks_->opened_at(history.length());
    if (opened_at > 0 && !loops_.empty() && loops_.back() >= opened_at) {
      if (history.length() == loops_.back()) {
        report(history, edits);
      }
      edits.force(blocks_->closing_id(history));
    }
    return;
  }
  const std::optional<Cycle> cycle = finder_.found();
  if (!cycle) {
    return;
  }
  if (finder_.is_new()) {
    report(history, edits);
  }
  if (action_ == LoopAction::end) {
    edits.allow(ends_.data(), ends_.size());
  } else if (action_ == LoopAction::deny_next) {
    const std::int32_t next = history.at(history.length() - cycle->period);
    if (next >= 0 && next < edits.vocab_size()) {
      edits.deny(&next, 1);
    }
  }
}

// Report the cycle at the history's end.
void LoopBreaker::report(const History &history, EditsWriter &edits) const {
  if (const std::optional<Cycle> cycle = finder_.found()) {
    edits.event(loop_found, cycle->period, cycle->begin - history.prompt_length());
  }
}

std::size_t LoopBreaker::bytes() const noexcept {
  return finder_.bytes() + ends_.capacity() * sizeof(std::int32_t) + loops_.capacity() * sizeof(std::int64_t) +
         (blocks_ ? blocks_->bytes() : 0);
}

// Follow a history from the beginning of its output, with blocks that have followed all of it.
void LoopBreaker::record_loops(const History &history, const ThinkingBlocks &blocks) {
  while (finder_.length() < history.length()) {
    finder_.advance(history.data(), finder_.length() + 1);
    record_loop(blocks);
  }
}

// Record the first cycle of the block that is open at the finder's length.
void LoopBreaker::record_loop(const ThinkingBlocks &blocks) {
  if (!finder_.found()) {
    return;
  }
  const std::int64_t opened_at = blocks.opened_at(finder_.length());
  if (opened_at > 0 && (loops_.empty() || loops_.back() < opened_at)) {
    loops_.push_back(finder_.length());
  }
}

}  // namespace logitport
