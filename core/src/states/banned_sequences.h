// The state of `bad_words`: the ids that would complete a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../state.h"
#include "first_denial.h"

namespace logitport {

// Sequences by their ids before the last one, in a trie that is read from the end of a history: a look-up reads one id
// more than the longest prefix that the history ends with has in common with a sequence.
class BannedSequences : public State {
 public:
  // Sequences of one or more ids. `generated_only`: only ids of the output count.
  BannedSequences(const std::vector<std::vector<std::int32_t>> &sequences, bool generated_only);

  void rewind(const History &history) override { first_denial_.rewind(history.length()); }
  void restart(const History & /*history*/) override { first_denial_ = FirstDenial(); }
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override {
    return {static_cast<std::int64_t>(followers_.size()), 0};
  }
  [[nodiscard]] std::size_t bytes() const noexcept override;

 private:
  struct Edge {
    std::int32_t id;
    std::uint32_t node;
  };
  // The edges and followers of node n end where the edges and followers of node n + 1 begin. Edges and followers are
  // sorted by id.
  struct Node {
    std::size_t first_edge;
    std::size_t first_follower;
  };

  [[nodiscard]] bool denies_at(const History &history, std::int64_t length) const;
  [[nodiscard]] std::size_t child(std::size_t node, std::int32_t id) const noexcept;
  [[nodiscard]] std::size_t count_followers(std::size_t node) const noexcept {
    return nodes_[node + 1].first_follower - nodes_[node].first_follower;
  }
  void deny_followers(std::size_t node, EditsWriter &edits) const {
    edits.deny(followers_.data() + nodes_[node].first_follower, count_followers(node));
  }

  std::vector<Node> nodes_;  // the root first; at the end one without edges and followers
  std::vector<Edge> edges_;
  std::vector<std::int32_t> followers_;
  bool generated_only_;
  FirstDenial first_denial_;
};

}  // namespace logitport
