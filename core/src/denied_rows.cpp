#include "denied_rows.h"

#include <algorithm>
#include <cstddef>

namespace logitport {
namespace {

// The ids that the edits of one row leave, a bit for each.
class AllowedIds {
 public:
  explicit AllowedIds(std::int64_t vocab_size) : vocab_size_(vocab_size) {}

  void set_all() {
    words_.assign(static_cast<std::size_t>((vocab_size_ + 31) / 32), ~std::uint32_t{0});
    if (const auto used = static_cast<std::uint32_t>(vocab_size_ % 32); used != 0) {
      words_.back() = (std::uint32_t{1} << used) - 1;
    }
  }

  void apply(EditKind kind, const std::int32_t *ids, std::size_t count) {
    if (kind == EditKind::deny) {
      for (std::size_t i = 0; i < count; ++i) {
        words_[static_cast<std::size_t>(ids[i]) / 32] &= ~bit(ids[i]);
      }
    } else if (kind == EditKind::bitmask) {
      for (std::size_t word = 0; word < words_.size(); ++word) {
        words_[word] &= static_cast<std::uint32_t>(ids[word]);
      }
    } else if (kind != EditKind::bias) {
      keep_only(ids, count);
    }
  }

  [[nodiscard]] bool is_empty() const {
    return std::all_of(words_.begin(), words_.end(), [](std::uint32_t word) { return word == 0; });
  }

 private:
  static std::uint32_t bit(std::int32_t id) { return std::uint32_t{1} << (static_cast<std::uint32_t>(id) % 32); }

  void keep_only(const std::int32_t *ids, std::size_t count) {
    std::vector<std::uint32_t> kept(words_.size(), 0);
    for (std::size_t i = 0; i < count; ++i) {
      kept[static_cast<std::size_t>(ids[i]) / 32] |= bit(ids[i]);
    }
    for (std::size_t word = 0; word < words_.size(); ++word) {
      words_[word] &= kept[word];
    }
  }

  std::int64_t vocab_size_;
  std::vector<std::uint32_t> words_;
};

// The edits [begin, end) of one row.
bool denies_all(const EditsColumns &edits, std::size_t begin, std::size_t end, AllowedIds &allowed,
                std::int64_t vocab_size) {
  std::int64_t denied = 0;
  bool only_denies = true;
  for (std::size_t edit = begin; edit < end; ++edit) {
    const auto kind = static_cast<EditKind>(edits.kinds[edit]);
    only_denies = only_denies && (kind == EditKind::deny || kind == EditKind::bias);
    denied += kind == EditKind::deny ? edits.offsets[edit + 1] - edits.offsets[edit] : 0;
  }
  if (only_denies && denied < vocab_size) {
    return false;
  }
  if (end - begin == 1 && static_cast<EditKind>(edits.kinds[begin]) == EditKind::force) {
    return false;
  }
  allowed.set_all();
  for (std::size_t edit = begin; edit < end; ++edit) {
    const auto first = static_cast<std::size_t>(edits.offsets[edit]);
    const auto last = static_cast<std::size_t>(edits.offsets[edit + 1]);
    allowed.apply(static_cast<EditKind>(edits.kinds[edit]), edits.ids.data() + first, last - first);
  }
  return allowed.is_empty();
}

}  // namespace

std::vector<std::int32_t> all_denied_rows(const EditsColumns &edits, std::int64_t vocab_size) {
  std::vector<std::int32_t> denied;
  AllowedIds allowed(vocab_size);
  const std::size_t count = edits.rows.size();
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && edits.rows[end] == edits.rows[begin]) {
      ++end;
    }
    if (denies_all(edits, begin, end, allowed, vocab_size)) {
      denied.push_back(edits.rows[begin]);
    }
  }
  return denied;
}

}  // namespace logitport
