#include "edits_writer.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "errors.h"

namespace logitport {
namespace {

constexpr std::size_t max_ids = std::numeric_limits<std::int32_t>::max();
// Up to this many ids, sorting is faster than reading a part of the bits of a vocabulary.
constexpr std::size_t few_ids = 64;

const char *name_of(EditKind kind) {
  switch (kind) {
    case EditKind::deny:
      return "DENY";
    case EditKind::allow:
      return "ALLOW";
    case EditKind::force:
      return "FORCE";
    case EditKind::bias:
      return "BIAS";
    default:
      return "BITMASK";
  }
}

}  // namespace

EditsWriter::EditsWriter(std::int64_t vocab_size, bool uses_bitmasks)
    : vocab_size_(vocab_size), words_(static_cast<std::size_t>((vocab_size + 31) / 32)), uses_bitmasks_(uses_bitmasks) {
  columns_.offsets.push_back(0);
}

void EditsWriter::begin_row(std::int32_t row) {
  row_ = row;
  row_edits_ = size();
  row_biases_ = biases_;
}

void EditsWriter::discard_row() {
  columns_.rows.resize(row_edits_);
  columns_.kinds.resize(row_edits_);
  columns_.offsets.resize(row_edits_ + 1);
  columns_.ids.resize(static_cast<std::size_t>(columns_.offsets.back()));
  biases_ = row_biases_;
  columns_.values.resize(biases_ != 0 ? columns_.ids.size() : 0);
}

void EditsWriter::clear() {
  row_edits_ = row_biases_ = 0;
  discard_row();
}

EditsColumns EditsWriter::take() {
  EditsColumns taken = std::move(columns_);
  columns_ = EditsColumns();
  columns_.offsets.push_back(0);
  row_edits_ = row_biases_ = biases_ = 0;
  return taken;
}

void EditsWriter::deny(const std::int32_t *ids, std::size_t count) {
  if (count != 0) {
    add(EditKind::deny, ids, count);
  }
}

void EditsWriter::allow(const std::int32_t *ids, std::size_t count) { add(EditKind::allow, ids, count); }

void EditsWriter::force(std::int32_t id) {
  check(EditKind::force, &id, 1);
  discard_row();
  add(EditKind::force, &id, 1);
}

void EditsWriter::bias(const std::int32_t *ids, const float *values, std::size_t count) {
  if (count == 0) {
    return;
  }
  check(EditKind::bias, ids, count);
  ++biases_;
  begin_edit(EditKind::bias, count);
  columns_.ids.insert(columns_.ids.end(), ids, ids + count);
  columns_.values.resize(columns_.ids.size() - count);
  columns_.values.insert(columns_.values.end(), values, values + count);
}

void EditsWriter::bitmask(const std::int32_t *words) {
  begin_edit(EditKind::bitmask, words_);
  columns_.ids.insert(columns_.ids.end(), words, words + words_);
  columns_.values.resize(biases_ != 0 ? columns_.ids.size() : 0);
}

void EditsWriter::deny_set(std::vector<std::int32_t> &ids) {
  if (ids.size() <= few_ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    deny(ids.data(), ids.size());
    return;
  }
  check(EditKind::deny, ids.data(), ids.size());
  seen_.resize((static_cast<std::size_t>(vocab_size_) + 63) / 64);
  std::size_t first = seen_.size();
  std::size_t last = 0;
  for (const std::int32_t id : ids) {
    const auto bit = static_cast<std::size_t>(id);
    seen_[bit / 64] |= std::uint64_t{1} << (bit % 64);
    first = std::min(first, bit / 64);
    last = std::max(last, bit / 64);
  }
  std::size_t count = 0;
  for (std::size_t word = first; word <= last; ++word) {
    for (std::uint64_t bits = seen_[word]; bits != 0; bits &= bits - 1) {
      ids[count++] = static_cast<std::int32_t>(word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)));
    }
    seen_[word] = 0;
  }
  ids.resize(count);
  deny(ids.data(), ids.size());
}

void EditsWriter::add(EditKind kind, const std::int32_t *ids, std::size_t count) {
  check(kind, ids, count);
  if (uses_bitmasks_ && count > words_ && kind != EditKind::force) {
    add_as_bitmask(kind, ids, count);
    return;
  }
  begin_edit(kind, count);
  columns_.ids.insert(columns_.ids.end(), ids, ids + count);
  columns_.values.resize(biases_ != 0 ? columns_.ids.size() : 0);
}

void EditsWriter::add_as_bitmask(EditKind kind, const std::int32_t *ids, std::size_t count) {
  std::vector<std::uint32_t> words(words_, kind == EditKind::deny ? ~std::uint32_t{0} : 0);
  if (const auto used = static_cast<std::uint32_t>(vocab_size_ % 32); used != 0) {
    words.back() &= (std::uint32_t{1} << used) - 1;  // bits past the vocabulary are 0
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(ids[i]);
    const std::uint32_t bit = std::uint32_t{1} << (id % 32);
    if (kind == EditKind::deny) {
      words[id / 32] &= ~bit;
    } else {
      words[id / 32] |= bit;
    }
  }
  const std::vector<std::int32_t> column(words.begin(), words.end());
  bitmask(column.data());
}

void EditsWriter::begin_edit(EditKind kind, std::size_t count) {
  const std::size_t end = columns_.ids.size() + count;
  if (end > max_ids) {
    throw Error(ErrorCode::invalid_argument, "the edits of a step have more than 2147483647 ids");
  }
  columns_.rows.push_back(row_);
  columns_.kinds.push_back(static_cast<std::uint8_t>(kind));
  columns_.offsets.push_back(static_cast<std::int32_t>(end));
}

void EditsWriter::check(EditKind kind, const std::int32_t *ids, std::size_t count) const {
  // Without a branch in the loop, the compiler uses vector instructions. Negative ids become large ones.
  const auto limit = static_cast<std::uint32_t>(vocab_size_);
  bool outside = false;
  for (std::size_t i = 0; i < count; ++i) {
    outside |= static_cast<std::uint32_t>(ids[i]) >= limit;
  }
  if (outside) {
    const std::int32_t *wrong =
        std::find_if(ids, ids + count, [limit](std::int32_t id) { return static_cast<std::uint32_t>(id) >= limit; });
    throw Error(ErrorCode::invalid_token_id, std::string(name_of(kind)) + " of token id " + std::to_string(*wrong) +
                                                 ": ids must lie in [0, " + std::to_string(vocab_size_) + ")");
  }
}

}  // namespace logitport
