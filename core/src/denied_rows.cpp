#include "denied_rows.h"

#include <algorithm>
#include <cstddef>

namespace logitport {
namespace {

// Apply an edit to the words of a bitmask with the ids that are still allowed.
void apply(EditKind kind, const std::int32_t *ids, std::size_t count, std::vector<std::uint32_t> &allowed) {
  const auto word_of = [&allowed](std::int32_t id) -> std::uint32_t & {
    return allowed[static_cast<std::size_t>(id) / 32];
  };
  const auto bit_of = [](std::int32_t id) { return std::uint32_t{1} << (static_cast<std::uint32_t>(id) % 32); };
  switch (kind) {
    case EditKind::deny:
      for (std::size_t i = 0; i < count; ++i) {
        word_of(ids[i]) &= ~bit_of(ids[i]);
      }
      break;
    case EditKind::bitmask:
      for (std::size_t word = 0; word < count; ++word) {
        allowed[word] &= static_cast<std::uint32_t>(ids[word]);
      }
      break;
    case EditKind::allow: {
      std::vector<std::uint32_t> both(allowed.size());
      for (std::size_t i = 0; i < count; ++i) {
        both[static_cast<std::size_t>(ids[i]) / 32] |= word_of(ids[i]) & bit_of(ids[i]);
      }
      allowed.swap(both);
      break;
    }
    case EditKind::force:
    case EditKind::bias:
      break;
  }
}

// Whether an edit denies this id.
bool denies(EditKind kind, const std::int32_t *ids, std::size_t count, std::int32_t id) {
  if (kind == EditKind::deny || kind == EditKind::allow) {
    return (std::find(ids, ids + count, id) != ids + count) == (kind == EditKind::deny);
  }
  const auto bit = static_cast<std::uint32_t>(id) % 32;
  return kind == EditKind::bitmask && ((static_cast<std::uint32_t>(ids[id / 32]) >> bit) & 1U) == 0;
}

// The edits [begin, end) of one row. `allowed` is memory that is used again for the next row.
bool denies_all(const PackedEdits &edits, std::size_t begin, std::size_t end, std::vector<std::uint32_t> &allowed,
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
  const auto for_each = [&edits, begin, end](const auto &visit) {
    for (std::size_t edit = begin; edit < end; ++edit) {
      const auto first = static_cast<std::size_t>(edits.offsets[edit]);
      const auto last = static_cast<std::size_t>(edits.offsets[edit + 1]);
      visit(static_cast<EditKind>(edits.kinds[edit]), edits.ids.data() + first, last - first);
    }
  };
  if (static_cast<EditKind>(edits.kinds[begin]) == EditKind::force) {  // the first edit of its row
    const std::int32_t forced = edits.ids[static_cast<std::size_t>(edits.offsets[begin])];
    bool denied_too = false;
    for_each([&](auto kind, auto ids, auto number) { denied_too |= denies(kind, ids, number, forced); });
    return denied_too;
  }
  allow_all(allowed, vocab_size);
  for_each([&](auto kind, auto ids, auto number) { apply(kind, ids, number, allowed); });
  return std::all_of(allowed.begin(), allowed.end(), [](std::uint32_t word) { return word == 0; });
}

}  // namespace

std::vector<std::int32_t> all_denied_rows(const PackedEdits &edits, std::int64_t vocab_size) {
  std::vector<std::int32_t> denied;
  std::vector<std::uint32_t> allowed;
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
