#include "edits_writer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "errors.h"
#include "prefetch.h"

namespace logitport {
namespace {

constexpr std::size_t max_ids = std::size_t{1} << 26;  // as in client/logitport/core/edits.py
// Up to this many ids, sorting is faster than reading a part of the bits of a vocabulary.
constexpr std::size_t few_ids = 64;
// Up to this many bits for each id, and no more: a client may open a session with a vocabulary of 2**31 ids.
constexpr std::size_t most_bits_an_id = 4096;

}  // namespace

void allow_all(std::vector<std::uint32_t> &words, std::int64_t vocab_size) {
  words.assign(static_cast<std::size_t>(bitmask_words(vocab_size)), ~std::uint32_t{0});
  if (const auto used = static_cast<std::uint32_t>(vocab_size % 32); used != 0) {
    words.back() = (std::uint32_t{1} << used) - 1;
  }
}

EditsWriter::EditsWriter(std::int64_t vocab_size, bool uses_bitmasks)
    : vocab_size_(vocab_size),
      words_(static_cast<std::size_t>(bitmask_words(vocab_size))),
      uses_bitmasks_(uses_bitmasks) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::invalid_argument, "the size of a vocabulary must lie in [1, 2**31)");
  }
  columns_.offsets.push_back(0);
}

void EditsWriter::begin_row(std::int32_t row) {
  row_ = row;
  exempt_ = -1;
  row_edits_ = columns_.rows.size();
  row_biases_ = biases_;
}

void EditsWriter::sort_rows() {
  std::stable_sort(events_.begin(), events_.end(),
                   [](const RowEvent &one, const RowEvent &other) { return one.row < other.row; });
  if (std::is_sorted(columns_.rows.begin(), columns_.rows.end())) {
    return;
  }
  // A counting sort: the rows are those of one step.
  const std::size_t count = columns_.rows.size();
  next_.assign(static_cast<std::size_t>(*std::max_element(columns_.rows.begin(), columns_.rows.end())) + 2, 0);
  for (const std::int32_t row : columns_.rows) {
    ++next_[static_cast<std::size_t>(row) + 1];
  }
  std::partial_sum(next_.begin(), next_.end(), next_.begin());
  order_.resize(count);
  for (std::size_t edit = 0; edit < count; ++edit) {
    order_[next_[static_cast<std::size_t>(columns_.rows[edit])]++] = edit;
  }
  sorted_.rows.resize(count);
  sorted_.kinds.resize(count);
  sorted_.offsets.resize(count + 1);
  sorted_.ids.resize(columns_.ids.size());
  sorted_.values.resize(columns_.values.size());
  std::int32_t end = 0;
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t edit = order_[index];
    const std::int32_t begin = columns_.offsets[edit], size = columns_.offsets[edit + 1] - begin;
    sorted_.rows[index] = columns_.rows[edit];
    sorted_.kinds[index] = columns_.kinds[edit];
    sorted_.offsets[index] = end;
    std::copy_n(columns_.ids.begin() + begin, size, sorted_.ids.begin() + end);
    if (!columns_.values.empty()) {
      std::copy_n(columns_.values.begin() + begin, size, sorted_.values.begin() + end);
    }
    end += size;
  }
  sorted_.offsets[count] = end;
  std::swap(columns_, sorted_);
}

void EditsWriter::clear() {
  row_edits_ = row_biases_ = 0;
  discard_row();
  events_.clear();
}

void EditsWriter::prefetch() const noexcept {
  prefetch_to_write(columns_.rows);
  prefetch_to_write(columns_.kinds);
  prefetch_to_write(columns_.offsets);
  prefetch_to_write(columns_.ids);
  prefetch_to_write(columns_.values);
}

PackedEdits EditsWriter::take() {
  PackedEdits taken = std::move(columns_);
  columns_ = PackedEdits();
  sorted_ = PackedEdits();
  next_ = order_ = std::vector<std::size_t>();
  columns_.offsets.push_back(0);
  row_edits_ = row_biases_ = biases_ = 0;
  return taken;
}

void EditsWriter::deny(const std::int32_t *ids, std::size_t count) {
  const List others = without_exempt({ids, count});
  if (others.count == 0) {
    return;
  }
  check("DENY", others.ids, others.count);
  if (uses_bitmasks_ && others.count > words_) {
    deny_by_bitmask(others.ids, others.count);
  } else {
    append(EditKind::deny, others.ids, others.count);
  }
}

void EditsWriter::allow(const std::int32_t *ids, std::size_t count) {
  std::vector<std::int32_t> with_exempt;
  if (exempt_ >= 0) {
    const List others = without_exempt({ids, count});
    with_exempt.assign(others.ids, others.ids + others.count);
    with_exempt.push_back(exempt_);
    ids = with_exempt.data();
    count = with_exempt.size();
  }
  check("ALLOW", ids, count);
  if (!uses_bitmasks_ || count <= words_) {
    append(EditKind::allow, ids, count);
    return;
  }
  std::vector<std::uint32_t> words(words_);
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(ids[i]);
    words[id / 32] |= std::uint32_t{1} << (id % 32);
  }
  append(EditKind::bitmask, reinterpret_cast<const std::int32_t *>(words.data()), words_);
}

void EditsWriter::force(std::int32_t id) {
  check("FORCE", &id, 1);
  discard_row();
  append(EditKind::force, &id, 1);
}

void EditsWriter::bias(const std::int32_t *ids, const float *values, std::size_t count) {
  const List others = without_exempt({ids, count, values});
  if (others.count == 0) {
    return;
  }
  check("BIAS", others.ids, others.count);
  ++biases_;
  append(EditKind::bias, others.ids, others.count);
  std::copy_n(others.values, others.count, columns_.values.end() - static_cast<std::ptrdiff_t>(others.count));
}

void EditsWriter::deny_set(std::vector<std::int32_t> &ids) {
  if (ids.size() <= few_ids || static_cast<std::size_t>(vocab_size_) / most_bits_an_id > ids.size()) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    deny(ids.data(), ids.size());
    return;
  }
  check("DENY", ids.data(), ids.size());
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

EditsWriter::List EditsWriter::without_exempt(const List &list) {
  if (exempt_ < 0 || std::find(list.ids, list.ids + list.count, exempt_) == list.ids + list.count) {
    return list;
  }
  other_ids_.clear();
  other_values_.clear();
  for (std::size_t i = 0; i < list.count; ++i) {
    if (list.ids[i] != exempt_) {
      other_ids_.push_back(list.ids[i]);
      if (list.values != nullptr) {
        other_values_.push_back(list.values[i]);
      }
    }
  }
  return {other_ids_.data(), other_ids_.size(), other_values_.data()};
}

void EditsWriter::discard_row() {
  columns_.rows.resize(row_edits_);
  columns_.kinds.resize(row_edits_);
  columns_.offsets.resize(row_edits_ + 1);
  columns_.ids.resize(static_cast<std::size_t>(columns_.offsets.back()));
  biases_ = row_biases_;
  columns_.values.resize(biases_ != 0 ? columns_.ids.size() : 0);
}

void EditsWriter::deny_by_bitmask(const std::int32_t *ids, std::size_t count) {
  std::vector<std::uint32_t> words;
  allow_all(words, vocab_size_);
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(ids[i]);
    words[id / 32] &= ~(std::uint32_t{1} << (id % 32));
  }
  append(EditKind::bitmask, reinterpret_cast<const std::int32_t *>(words.data()), words_);
}

void EditsWriter::append(EditKind kind, const std::int32_t *ids, std::size_t count) {
  const std::size_t end = columns_.ids.size() + count;
  if (end > max_ids) {
    throw Error(ErrorCode::limit_exceeded, "the edits of a step have more than " + std::to_string(max_ids) +
                                               " ids, or words of bitmasks: send fewer rows in one step");
  }
  columns_.rows.push_back(row_);
  columns_.kinds.push_back(static_cast<std::uint8_t>(kind));
  columns_.offsets.push_back(static_cast<std::int32_t>(end));
  columns_.ids.insert(columns_.ids.end(), ids, ids + count);
  columns_.values.resize(biases_ != 0 ? end : 0);
}

void EditsWriter::check(const char *kind, const std::int32_t *ids, std::size_t count) const {
  // Without a branch in the loop, the compiler uses vector instructions. Negative ids become large ones.
  const auto limit = static_cast<std::uint32_t>(vocab_size_);
  bool outside = false;
  for (std::size_t i = 0; i < count; ++i) {
    outside |= static_cast<std::uint32_t>(ids[i]) >= limit;
  }
  if (outside) {
    const std::int32_t *wrong =
        std::find_if(ids, ids + count, [limit](std::int32_t id) { return static_cast<std::uint32_t>(id) >= limit; });
    throw Error(ErrorCode::invalid_argument, std::string(kind) + " of token id " + std::to_string(*wrong) +
                                                 ": ids must lie in [0, " + std::to_string(vocab_size_) + ")");
  }
}

}  // namespace logitport
