#include "phase_tracker.h"

#include <algorithm>
#include <utility>

#include "../errors.h"

namespace logitport {
namespace {

// A tag that ends a block in the prompt decides only among its last ids.
constexpr std::int64_t near_the_end = 4;

bool ends_with(const History &history, std::int64_t length, const std::vector<std::int32_t> &tag) {
  const auto size = static_cast<std::int64_t>(tag.size());
  return length >= size && std::equal(tag.begin(), tag.end(), history.data() + length - size);
}

}  // namespace

PhaseTracker::PhaseTracker(const History &history, PhaseTags tags) : tags_(std::move(tags)) {
  std::stable_sort(tags_.tags.begin(), tags_.tags.end(),
                   [](const PhaseTag &one, const PhaseTag &other) { return one.ids.size() > other.ids.size(); });
  for (const PhaseTag &tag : tags_.tags) {
    if (std::find(last_ids_.begin(), last_ids_.end(), tag.ids.back()) == last_ids_.end()) {
      last_ids_.push_back(tag.ids.back());
    }
  }
  restart(history);
}

void PhaseTracker::restart(const History &history) {
  const std::int64_t prompt_length = history.prompt_length();
  blocks_.assign(1, Block(0, tags_.starts_in));
  length_ = 0;
  read_until(history, prompt_length);
  const Block last = blocks_.back();
  const bool is_decided =
      blocks_.size() > 1 && (last.phase() == Phase::thinking || last.begin() >= prompt_length - near_the_end);
  blocks_.assign(1, is_decided ? last : Block(prompt_length, tags_.starts_in));
  opens_ = !is_decided && tags_.opening_id >= 0;
  read(history);
}

void PhaseTracker::read(const History &history) { read_until(history, history.length()); }

void PhaseTracker::rewind(const History &history) {
  while (blocks_.size() > 1 && blocks_.back().begin() > history.length()) {
    blocks_.pop_back();
  }
  length_ = std::min(length_, history.length());
}

PhaseTracker::Block PhaseTracker::block_at(std::int64_t length) const noexcept {
  const auto after = std::upper_bound(blocks_.begin() + 1, blocks_.end(), length,
                                      [](std::int64_t wanted, const Block &block) { return wanted < block.begin(); });
  return after[-1];
}

std::size_t PhaseTracker::bytes() const noexcept {
  std::size_t ids = last_ids_.capacity();
  for (const PhaseTag &tag : tags_.tags) {
    ids += tag.ids.capacity();
  }
  return ids * sizeof(std::int32_t) + tags_.tags.capacity() * sizeof(PhaseTag) + blocks_.capacity() * sizeof(Block);
}

void PhaseTracker::read_until(const History &history, std::int64_t end) {
  if (end < length_) {
    throw Error(ErrorCode::internal, "the phases did not follow this history");
  }
  while (length_ < end) {
    const std::int64_t count = std::min(chunk, end - length_);
    if (ends_tag(history.data() + length_, count)) {
      for (std::int64_t i = 1; i <= count; ++i) {
        record(history, length_ + i);
      }
    }
    length_ += count;
  }
}

// Whether one of the next ids is the last one of a tag. Without a branch in the inner loop, the compiler uses vector
// instructions.
bool PhaseTracker::ends_tag(const std::int32_t *ids, std::int64_t count) const noexcept {
  bool found = false;
  for (const std::int32_t last : last_ids_) {
    for (std::int64_t i = 0; i < count; ++i) {
      found |= ids[i] == last;
    }
  }
  return found;
}

// Record the block that begins at this length, if a tag ends there.
void PhaseTracker::record(const History &history, std::int64_t length) {
  const std::int32_t last = history.at(length - 1);
  for (const PhaseTag &tag : tags_.tags) {
    if (tag.ids.back() != last || !ends_with(history, length, tag.ids)) {
      continue;
    }
    const bool in_prompt = length <= history.prompt_length();  // a template may write an end tag alone
    const bool is_first =
        length - static_cast<std::int64_t>(tag.ids.size()) <= std::max(blocks_.back().begin(), history.prompt_length());
    const bool ends = tag.within < 0 || tag.within == static_cast<int>(phase());
    if (in_prompt || (ends && (is_first || !tag.first_only))) {
      blocks_.emplace_back(length, tag.begins);
    }
    return;
  }
}

std::int32_t PhaseTracker::opening_id(const History &history) const noexcept {
  const std::int64_t begin = history.prompt_length();
  const std::int64_t count = history.length() - begin;
  if (count == 0) {
    return tags_.opening_id;
  }
  if (tags_.newline < 0 || count >= near_the_end) {
    return -1;
  }
  const std::int32_t *ids = history.data() + begin;
  return std::all_of(ids, ids + count, [this](std::int32_t id) { return id == tags_.newline; }) ? tags_.opening_id : -1;
}

}  // namespace logitport
