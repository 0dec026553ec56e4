#include "penalty.h"

#include <algorithm>
#include <random>

#include "../errors.h"

namespace logitport {

TokenCounts::Hash::Hash() {
  static const std::uint64_t odd = (std::uint64_t{std::random_device{}()} << 32U) | std::random_device{}() | 1U;
  multiplier = odd;
}

void TokenCounts::count(const std::int32_t *ids, std::size_t size) {
  std::vector<std::int32_t> sorted(ids, ids + size);
  std::sort(sorted.begin(), sorted.end());
  for (const std::int32_t id : sorted) {
    add(id);
  }
}

void TokenCounts::add(std::int32_t id) {
  if (const auto found = indices_.find(id); found != indices_.end()) {
    ++counts_[found->second];
    return;
  }
  ids_.push_back(id);  // before the index of the id, which must not point beyond them if memory is lacking
  counts_.push_back(1);
  indices_.emplace(id, ids_.size() - 1);
}

void TokenCounts::remove(std::int32_t id) {
  const auto found = indices_.find(id);
  if (found == indices_.end()) {
    throw Error(ErrorCode::internal, "the counts of a penalty did not follow this history");
  }
  const std::size_t index = found->second;
  if (--counts_[index] != 0) {
    return;
  }
  indices_.erase(found);
  if (index + 1 < ids_.size()) {  // the last one moves there
    ids_[index] = ids_.back();
    counts_[index] = counts_.back();
    indices_[ids_[index]] = index;
  }
  ids_.pop_back();
  counts_.pop_back();
}

std::size_t TokenCounts::bytes() const noexcept {
  // A node of the map has its entry and a link.
  return (ids_.capacity() + counts_.capacity()) * sizeof(std::int32_t) + indices_.bucket_count() * sizeof(void *) +
         indices_.size() * (sizeof(std::pair<const std::int32_t, std::size_t>) + sizeof(void *));
}

void Penalty::rewind(const History &history) {
  if (history.length() >= counted_) {
    return;
  }
  if (counts_) {
    const std::int32_t *cut = history.cut_ids(counted_);
    std::for_each(cut, cut + (counted_ - history.length()), [this](std::int32_t id) { tokens_.remove(id); });
  }
  counted_ = history.length();
}

void Penalty::restart(const History &history) {
  counts_ = false;
  counted_ = history.length();
  tokens_ = TokenCounts();
}

void Penalty::edit(const History &history, EditsWriter &edits) {
  if (penalty_ == 0.0F) {
    return;
  }
  if (history.length() < counted_) {
    throw Error(ErrorCode::internal, "the counts of a penalty did not follow this history");
  }
  if (!counts_) {
    tokens_.count(history.data() + history.prompt_length(),
                  static_cast<std::size_t>(history.length() - history.prompt_length()));
    counts_ = true;
  } else {
    std::for_each(history.data() + counted_, history.data() + history.length(),
                  [this](std::int32_t id) { tokens_.add(id); });
  }
  counted_ = history.length();
  std::vector<std::int32_t> &ids = edits.scratch();
  std::vector<float> values;
  values.reserve(tokens_.ids().size());
  for (std::size_t index = 0; index < tokens_.ids().size(); ++index) {
    const std::int32_t id = tokens_.ids()[index];
    if (id >= 0 && id < edits.vocab_size()) {
      ids.push_back(id);
      values.push_back(per_occurrence_ ? -penalty_ * static_cast<float>(tokens_.counts()[index]) : -penalty_);
    }
  }
  edits.bias(ids.data(), values.data(), ids.size());
}

}  // namespace logitport
