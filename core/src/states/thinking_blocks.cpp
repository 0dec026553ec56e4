#include "thinking_blocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "../errors.h"

namespace logitport {
namespace {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

bool ends_with(const History &history, std::int64_t length, const std::vector<std::int32_t> &tag) {
  const auto size = static_cast<std::int64_t>(tag.size());
  return length >= size && std::equal(tag.begin(), tag.end(), history.data() + length - size);
}

std::int64_t length_of(std::int64_t event) { return event < 0 ? -event : event; }

}  // namespace

ThinkingBlocks::ThinkingBlocks(const History &history, ThinkingLimit limit)
    : limit_(std::move(limit)),
      last_of_start_(limit_.start.back()),
      last_of_end_(limit_.end.back()),
      start_first_(limit_.start.size() >= limit_.end.size()) {
  find_tags(history);
}

void ThinkingBlocks::advance(const History &history, std::int32_t /*token_id*/) {
  if (history.length() == 0) {
    throw Error(ErrorCode::internal, "the thinking blocks did not follow this history");
  }
  if (record_tag(history, history.length())) {
    update();
  }
}

void ThinkingBlocks::rewind(const History &history) {
  while (length_of(events_.back()) > history.length()) {
    events_.pop_back();
  }
  update();
}

void ThinkingBlocks::edit(const History &history, EditsWriter &edits) {
  if (history.length() >= due_) {
    edits.force(closing_id(history));
  }
}

std::size_t ThinkingBlocks::bytes() const noexcept {
  return (limit_.start.capacity() + limit_.end.capacity()) * sizeof(std::int32_t) +
         events_.capacity() * sizeof(std::int64_t);
}

// Find the tags of a history: only the last one of the prompt, which is never rewound, and all of the output.
void ThinkingBlocks::find_tags(const History &history) {
  const std::int32_t *ids = history.data();
  for (std::int64_t length = history.prompt_length(); length > 0 && events_.size() == 1;) {
    if (length >= block && !ends_tag(ids + length - block)) {
      length -= block;
    } else {
      record_tag(history, length--);
    }
  }
  for (std::int64_t length = history.prompt_length(); length < history.length();) {
    if (length + block <= history.length() && !ends_tag(ids + length)) {
      length += block;
    } else {
      record_tag(history, ++length);
    }
  }
  update();
}

// Whether one of the next `block` ids is the last one of a tag. Without a branch in the loop, the compiler uses vector
// instructions.
bool ThinkingBlocks::ends_tag(const std::int32_t *ids) const noexcept {
  bool found = false;
  for (std::int64_t i = 0; i < block; ++i) {
    found |= ids[i] == last_of_start_ || ids[i] == last_of_end_;
  }
  return found;
}

// Record the tag that ends at this length. Returns whether there is one.
bool ThinkingBlocks::record_tag(const History &history, std::int64_t length) {
  const std::int32_t last = history.at(length - 1);
  if (last != last_of_start_ && last != last_of_end_) {
    return false;
  }
  const bool start = ends_with(history, length, limit_.start);
  const bool end = ends_with(history, length, limit_.end);
  if (start && (start_first_ || !end)) {
    events_.push_back(length);
  } else if (end) {
    events_.push_back(-length);
  }
  return start || end;
}

void ThinkingBlocks::update() noexcept {
  const std::int64_t opened_at = events_.back();
  due_ = opened_at > 0 && limit_.budget < never - opened_at ? opened_at + limit_.budget : never;
}

// The next id that closes the open block: the newline, or an id of the end tag.
std::int32_t ThinkingBlocks::closing_id(const History &history) const {
  const std::vector<std::int32_t> &end = limit_.end;
  // How many ids of the end tag the history ends with, of those in the block.
  std::int64_t written = std::min(history.length() - events_.back(), static_cast<std::int64_t>(end.size()) - 1);
  const std::int32_t *after = history.data() + history.length();
  while (!std::equal(end.begin(), end.begin() + written, after - written)) {
    --written;
  }
  const bool has_output = history.length() > history.prompt_length();
  if (written == 0 && limit_.newline && !(has_output && after[-1] == *limit_.newline)) {
    return *limit_.newline;
  }
  return end[static_cast<std::size_t>(written)];
}

}  // namespace logitport
