#include "banned_sequences.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace logitport {
namespace {

constexpr std::size_t root = 0;

// A node while the trie grows.
struct Growing {
  std::map<std::int32_t, std::uint32_t> children;
  std::set<std::int32_t> followers;
};

}  // namespace

BannedSequences::BannedSequences(const std::vector<std::vector<std::int32_t>> &sequences, bool generated_only)
    : generated_only_(generated_only) {
  std::vector<Growing> growing(1);
  for (const auto &sequence : sequences) {
    std::uint32_t node = root;
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
  const std::int64_t begin = generated_only_ ? history.prompt_length() : 0;
  std::size_t node = root;
  bool denies = false;
  deny_followers(root, edits);
  for (std::int64_t position = history.length() - 1; position >= begin; --position) {
    node = child(node, history.at(position));
    if (node == root) {
      break;
    }
    deny_followers(node, edits);
    denies |= count_followers(node) != 0;
  }
  if (first_denial_.is_at(history.prompt_length(), history.length(), denies,
                          [&](std::int64_t length) { return denies_at(history, length); })) {
    edits.event(ids_denied);
  }
}

// Whether the row at this length denies ids because of the ids before it. Those of the root are denied at each row.
bool BannedSequences::denies_at(const History &history, std::int64_t length) const {
  const std::int64_t begin = generated_only_ ? history.prompt_length() : 0;
  std::size_t node = root;
  for (std::int64_t position = length - 1; position >= begin; --position) {
    node = child(node, history.at(position));
    if (node == root) {
      return false;
    }
    if (count_followers(node) != 0) {
      return true;
    }
  }
  return false;
}

// The node of the sequences with this id before those of a node; the root if there is none.
std::size_t BannedSequences::child(std::size_t node, std::int32_t id) const noexcept {
  const Edge *first = edges_.data() + nodes_[node].first_edge;
  const Edge *last = edges_.data() + nodes_[node + 1].first_edge;
  const Edge *edge =
      std::lower_bound(first, last, id, [](const Edge &one, std::int32_t wanted) { return one.id < wanted; });
  return edge == last || edge->id != id ? root : edge->node;
}

std::size_t BannedSequences::bytes() const noexcept {
  return nodes_.capacity() * sizeof(Node) + edges_.capacity() * sizeof(Edge) +
         followers_.capacity() * sizeof(std::int32_t);
}

}  // namespace logitport
