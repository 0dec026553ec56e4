// The states of built-ins with the same edits at every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../state.h"

namespace logitport {

// Load the beginning of a list into the cache: the processor loads the rest when it is read in order.
template <typename T>
void prefetch_list(const std::vector<T> &elements) noexcept {
  prefetch_to_read(elements.data(), std::min(elements.size() * sizeof(T), 8 * cache_line));
}

// Denies a list of ids: `disallowed_tokens`; until the output has a length: `min_tokens`.
class TokenList : public State {
 public:
  // `below`: the ids are denied while the output is shorter than this. Negative: always.
  TokenList(std::vector<std::int32_t> ids, std::int64_t below) : ids_(std::move(ids)), below_(below) {}

  void prefetch(const History & /*history*/) noexcept override { prefetch_list(ids_); }
  void edit(const History &history, EditsWriter &edits) override {
    if (below_ < 0 || history.length() - history.prompt_length() < below_) {
      edits.deny(ids_.data(), ids_.size());
    }
  }
  [[nodiscard]] EditSize edit_size() const noexcept override { return {static_cast<std::int64_t>(ids_.size()), 0}; }
  [[nodiscard]] std::size_t bytes() const noexcept override { return ids_.capacity() * sizeof(std::int32_t); }

 private:
  std::vector<std::int32_t> ids_;
  std::int64_t below_;
};

// Adds a value to the logit of each id of a list: `logit_bias`.
class BiasList : public State {
 public:
  // As many values as ids; the caller checks it.
  BiasList(std::vector<std::int32_t> ids, std::vector<float> values)
      : ids_(std::move(ids)), values_(std::move(values)) {}

  void prefetch(const History & /*history*/) noexcept override {
    prefetch_list(ids_);
    prefetch_list(values_);
  }
  void edit(const History & /*history*/, EditsWriter &edits) override {
    edits.bias(ids_.data(), values_.data(), ids_.size());
  }
  [[nodiscard]] EditSize edit_size() const noexcept override { return {2 * static_cast<std::int64_t>(ids_.size()), 0}; }
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return ids_.capacity() * sizeof(std::int32_t) + values_.capacity() * sizeof(float);
  }

 private:
  std::vector<std::int32_t> ids_;
  std::vector<float> values_;
};

}  // namespace logitport
