// Writes the edits of a step's rows as columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "edit_columns.h"
#include "row_events.h"

namespace logitport {

// The effect of an edit on its row; the values of `EditKind` in client/logitport/core/row_edits.py.
enum class EditKind : std::uint8_t { deny = 1, allow = 2, force = 3, bias = 4, bitmask = 5 };

// Number of words of a bitmask over a vocabulary.
constexpr std::int64_t bitmask_words(std::int64_t vocab_size) noexcept { return (vocab_size + 31) / 32; }

// Make the words a bitmask that allows all ids of a vocabulary. Bits past it are 0.
void allow_all(std::vector<std::uint32_t> &words, std::int64_t vocab_size);

template <typename T>
using Vector = std::vector<T>;  // without its allocator

using PackedEdits = EditColumns<Vector>;

// Collects edits row by row, and packs them as `Edits.pack` does: lists that are longer than a bitmask become one, a
// FORCE discards the earlier edits of its row, and there are values only if there is a BIAS.
// Throws an Error for an id outside the vocabulary, as `Edits.pack`, and if there are too many ids.
class EditsWriter {
 public:
  // `uses_bitmasks`: whether lists that are longer than a bitmask become one.
  // Throws an Error if the size is not in [1, 2**31).
  explicit EditsWriter(std::int64_t vocab_size, bool uses_bitmasks = true);

  // Begin another row; calls of the other methods add to it. If the rows do not ascend, `sort_rows` ends them.
  void begin_row(std::int32_t row);
  // Put edits and events in the order of their rows. Keeps the memory.
  void sort_rows();
  // Discard all edits, and keep the memory.
  void clear();
  // Load the memory for edits as many as there are, before they are cleared and others are written.
  void prefetch() const noexcept;

  void deny(const std::int32_t *ids, std::size_t count);
  // Deny all ids but these.
  void allow(const std::int32_t *ids, std::size_t count);
  void force(std::int32_t id);
  // Add values[i], which are finite, to the logit of ids[i].
  void bias(const std::int32_t *ids, const float *values, std::size_t count);
  // Report an event of the row, which no edit discards.
  void event(const EventKind &kind, std::int64_t first = 0, std::int64_t second = 0) {
    events_.push_back({row_, processor_, &kind, {first, second}});
  }
  // The number of the processor whose events follow.
  void set_processor(std::size_t number) noexcept { processor_ = number; }
  // The events since `clear`, row by row.
  [[nodiscard]] const std::vector<RowEvent> &events() const noexcept { return events_; }

  // Deny ids that may be repeated, in any order. Sorts them, and removes what is repeated.
  void deny_set(std::vector<std::int32_t> &ids);

  // Leave an id out of all calls of deny and bias until the next call; a negative one is none.
  void exempt(std::int32_t id) noexcept { exempt_ = id; }

  // An empty vector for ids, for the use between two calls.
  [[nodiscard]] std::vector<std::int32_t> &scratch() {
    scratch_.clear();
    return scratch_;
  }

  [[nodiscard]] std::int64_t vocab_size() const noexcept { return vocab_size_; }
  [[nodiscard]] const PackedEdits &columns() const noexcept { return columns_; }
  // For how many ids the writer keeps memory, in one of its columns.
  [[nodiscard]] std::size_t capacity() const noexcept {
    return std::max(columns_.ids.capacity(), sorted_.ids.capacity());
  }
  // The columns themselves; the writer is then empty, and keeps no memory of edits.
  [[nodiscard]] PackedEdits take();

 private:
  // Ids, with a value for each or without values.
  struct List {
    const std::int32_t *ids = nullptr;
    std::size_t count = 0;
    const float *values = nullptr;
  };

  // The list without the exempt id. Valid until the next call.
  [[nodiscard]] List without_exempt(const List &list);
  void discard_row();
  void deny_by_bitmask(const std::int32_t *ids, std::size_t count);
  void append(EditKind kind, const std::int32_t *ids, std::size_t count);
  void check(const char *kind, const std::int32_t *ids, std::size_t count) const;

  std::int64_t vocab_size_;
  std::size_t words_;  // of a bitmask
  bool uses_bitmasks_;
  PackedEdits columns_;
  // Memory of `sort_rows`: columns, the index of the next edit of each row, and the edits in their order.
  PackedEdits sorted_;
  std::vector<std::size_t> next_, order_;
  std::vector<RowEvent> events_;
  std::size_t processor_ = 0;
  std::int32_t row_ = 0;
  // At the beginning of the row: the number of edits, and of those with values.
  std::size_t row_edits_ = 0;
  std::size_t row_biases_ = 0;
  std::size_t biases_ = 0;
  std::vector<std::uint64_t> seen_;  // a bit for each id, for deny_set; all 0 between calls
  std::vector<std::int32_t> scratch_;
  std::int32_t exempt_ = -1;
  std::vector<std::int32_t> other_ids_;  // than the exempt one
  std::vector<float> other_values_;
};

}  // namespace logitport
