// The state of `presence_penalty` and `frequency_penalty`: how often each id was generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../state.h"

namespace logitport {

// Distinct ids and how often each occurs, in the order of `TokenCounts` in client/logitport_programs/request_tokens.py.
class TokenCounts {
 public:
  void count(const std::int32_t *ids, std::size_t size);  // the first ids: distinct ones become ascending
  void add(std::int32_t id);
  void remove(std::int32_t id);  // an id that was counted

  [[nodiscard]] const std::vector<std::int32_t> &ids() const noexcept { return ids_; }
  [[nodiscard]] const std::vector<std::int32_t> &counts() const noexcept { return counts_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  // Free the map of indices, which takes long: it has a block of memory for each id. Only before the end of the counts.
  void free() noexcept { indices_.clear(); }

 private:
  // An odd multiplier, drawn at random by each process: ids that share a bucket cannot be prepared. It is drawn in the
  // constructor, because a source of random numbers throws where no descriptor is free.
  struct Hash {
    Hash();
    std::size_t operator()(std::int32_t id) const noexcept {
      return static_cast<std::size_t>((static_cast<std::uint32_t>(id) * multiplier) >> 32U);
    }
    std::uint64_t multiplier;
  };

  std::vector<std::int32_t> ids_;
  std::vector<std::int32_t> counts_;
  std::unordered_map<std::int32_t, std::size_t, Hash> indices_;
};

// Subtracts the penalty from the logit of each generated id, once or as often as it was generated.
//
// Ids are counted from the first edit on, and then at each edit, as by `RequestTokens` in
// client/logitport_programs/request_tokens.py: the order of the ids in the edits depends on it.
class Penalty : public State {
 public:
  Penalty(const History &history, float penalty, bool per_occurrence)
      : penalty_(penalty), per_occurrence_(per_occurrence), counted_(history.length()) {}

  void rewind(const History &history) override;
  void restart(const History &history) override;
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override { return {0, 2}; }
  [[nodiscard]] std::size_t bytes() const noexcept override { return tokens_.bytes(); }
  // Free the counts. No other method may be called afterwards.
  void free() noexcept { tokens_.free(); }

 private:
  float penalty_;
  bool per_occurrence_;
  bool counts_ = false;   // whether the first edit was made
  std::int64_t counted_;  // ids that are in `tokens_`, and the prompt's
  TokenCounts tokens_;
};

}  // namespace logitport
