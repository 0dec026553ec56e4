#include "history.h"

#include <algorithm>
#include <limits>
#include <string>

#include "checksum.h"
#include "errors.h"
#include "populate.h"

namespace logitport {
namespace {

constexpr std::int64_t smallest_capacity = 64;
// Lengths and positions travel, and are kept, as int32.
constexpr std::int64_t max_length = std::numeric_limits<std::int32_t>::max();

std::int64_t checked_length(std::size_t first, std::size_t second) {
  const auto limit = static_cast<std::size_t>(max_length);
  if (first > limit || second > limit - first) {
    throw Error(ErrorCode::invalid_argument, "a history has at most " + std::to_string(max_length) + " ids");
  }
  return static_cast<std::int64_t>(first + second);
}

}  // namespace

History::History(const std::int32_t *prompt, std::size_t prompt_count, const std::int32_t *output,
                 std::size_t output_count) {
  reserve(checked_length(prompt_count, output_count));
  std::copy_n(prompt, prompt_count, ids_.get());
  std::copy_n(output, output_count, ids_.get() + prompt_count);
  prompt_length_ = static_cast<std::int64_t>(prompt_count);
  length_ = static_cast<std::int64_t>(prompt_count + output_count);
}

void History::extend(const std::int32_t *token_ids, std::size_t count) {
  const std::int64_t length = checked_length(static_cast<std::size_t>(length_), count);
  if (length > capacity_) {
    reserve(length);
  }
  std::copy_n(token_ids, count, ids_.get() + length_);
  length_ = length;
}

void History::rewind(std::int64_t length) {
  if (length < prompt_length_ || length > length_) {
    throw Error(ErrorCode::invalid_argument, "cannot rewind a history of " + std::to_string(length_) + " ids to " +
                                                 std::to_string(length) + ": the length must lie between " +
                                                 std::to_string(prompt_length_) + " (the prompt) and " +
                                                 std::to_string(length_));
  }
  longest_ = std::max(longest_, length_);
  const std::int64_t cut = length_ - length - draft_tokens;  // ids that were sampled
  draft_tokens = std::max<std::int64_t>(0, -cut);
  if (cut > 0) {
    sampled_rows_ = std::max<std::int64_t>(0, sampled_rows_ - cut);
    open_rows_ = 0;
  }
  length_ = length;
  if (checked_ > length) {
    checkpoints_.resize(static_cast<std::size_t>(length / checkpoint_every));
    checked_ = static_cast<std::int64_t>(checkpoints_.size()) * checkpoint_every;
    checksum_ = checkpoints_.empty() ? 0 : checkpoints_.back();
  }
}

void History::follow(const History &other, std::int64_t prompt_length) {
  if (prompt_length < 0 || prompt_length > other.length_) {
    throw Error(ErrorCode::invalid_argument, "a view of " + std::to_string(other.length_) +
                                                 " ids cannot have a prompt of " + std::to_string(prompt_length));
  }
  if (ids_ != other.ids_) {
    ids_ = other.ids_;
  }
  length_ = capacity_ = other.length_;  // an append would copy the array
  longest_ = other.longest_;
  prompt_length_ = prompt_length;
  draft_tokens = other.draft_tokens;
  checked_ = checksum_ = 0;
  checkpoints_.clear();
}

std::uint32_t History::checksum() {
  while (checked_ < length_) {
    const std::int64_t checkpoint = (checked_ / checkpoint_every + 1) * checkpoint_every;
    const std::int64_t end = std::min(checkpoint, length_);
    const std::uint32_t extended =
        extend_crc(checksum_, ids_.get() + checked_, static_cast<std::size_t>(end - checked_));
    if (end == checkpoint) {
      checkpoints_.push_back(extended);
    }
    checksum_ = extended;  // after what may fail: else these ids would count twice
    checked_ = end;
  }
  return checksum_;
}

const std::int32_t *History::cut_ids(std::int64_t from_length) const {
  if (from_length < length_ || from_length > longest()) {
    throw Error(ErrorCode::invalid_argument, "no ids were cut off a history of " + std::to_string(from_length) +
                                                 " ids: it has " + std::to_string(length_));
  }
  return ids_.get() + length_;
}

std::size_t History::bytes() const noexcept {
  return static_cast<std::size_t>(capacity_) * sizeof(std::int32_t) + checkpoints_.capacity() * sizeof(std::uint32_t);
}

void History::reserve(std::int64_t length) {
  checked_length(static_cast<std::size_t>(length), 0);
  // An eighth more for the first time, a quarter more each time it grows: each id is copied a few times on average.
  const std::int64_t spare = ids_ == nullptr ? length / 8 : length / 4;
  const std::int64_t capacity = std::min(max_length, std::max(smallest_capacity, length + spare));
  // Not make_shared, which would set the array to zero first.
  std::shared_ptr<std::int32_t[]> grown(new std::int32_t[static_cast<std::size_t>(capacity)]);
  populate(grown.get(), static_cast<std::size_t>(length) * sizeof(std::int32_t));
  std::copy_n(ids_.get(), length_, grown.get());
  ids_ = std::move(grown);
  capacity_ = capacity;  // not before there is memory: `append` would write beyond the array that it kept
  longest_ = 0;
}

}  // namespace logitport
