#include "banned_sequences.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace logitport {
namespace {

// A node while the trie grows.
struct Growing {
  std::map<std::int32_t, std::uint32_t> children;
  std::set<std::int32_t> followers;
};

}  // namespace

BannedSequences::BannedSequences(const std::vector<std::vector<std::int32_t>> &sequences, std::int64_t begin)
    : begin_(begin) {
  std::vector<Growing> growing(1);
  for (const auto &sequence : sequences) {
    std::uint32_t node = 0;
    for (auto id = std::next(sequence.rbegin()); id != sequence.rend(); ++id) {
      const auto [child, is_new] = growing[node].children.try_emplace(*id, static_cast<std::uint32_t>(growing.size()));
      node = child->second;
      if (is_new) {
        growing.emplace_back();
      }
    }
    growing[node].followers.insert(sequence.back());
  }
  for (const Growing &node : growing) {
    nodes_.push_back({edges_.size(), followers_.size()});
    for (const auto &[id, child] : node.children) {
      edges_.push_back({id, child});
    }
    followers_.insert(followers_.end(), node.followers.begin(), node.followers.end());
  }
  nodes_.push_back({edges_.size(), followers_.size()});
}

void BannedSequences::edit(const History &history, EditsWriter &edits) {
  std::size_t node = 0;
  for (std::int64_t position = history.length() - 1;; --position) {
    const Node &here = nodes_[node];
    const Node &next = nodes_[node + 1];
    edits.deny(followers_.data() + here.first_follower, next.first_follower - here.first_follower);
    if (position < begin_) {
      return;
    }
    const Edge *first = edges_.data() + here.first_edge;
    const Edge *last = edges_.data() + next.first_edge;
    const Edge *edge = std::lower_bound(first, last, history.at(position),
                                        [](const Edge &one, std::int32_t id) { return one.id < id; });
    if (edge == last || edge->id != history.at(position)) {
      return;
    }
    node = edge->node;
  }
}

std::size_t BannedSequences::bytes() const noexcept {
  return nodes_.capacity() * sizeof(Node) + edges_.capacity() * sizeof(Edge) +
         followers_.capacity() * sizeof(std::int32_t);
}

}  // namespace logitport
