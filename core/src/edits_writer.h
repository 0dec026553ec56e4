// Writes the edits of a step's rows as columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace logitport {

// The effect of an edit on its row; the values of `EditKind` in client/logitport/core/row_edits.py.
enum class EditKind : std::uint8_t { deny = 1, allow = 2, force = 3, bias = 4, bitmask = 5 };

// The columns of `Edits` in client/logitport/core/edits.py: compressed sparse rows.
struct EditsColumns {
  std::vector<std::int32_t> rows;
  std::vector<std::uint8_t> kinds;
  std::vector<std::int32_t> offsets;
  std::vector<std::int32_t> ids;
  std::vector<float> values;
};

// Collects edits row by row, and packs them as `Edits.pack` does: lists that are longer than a bitmask become one, a
// FORCE discards the earlier edits of its row, and there are values only if there is a BIAS.
// Throws an Error for an id outside the vocabulary, as `Edits.pack`, and if the ids are too many for int32 offsets.
class EditsWriter {
 public:
  // `uses_bitmasks`: whether lists that are longer than a bitmask become one.
  explicit EditsWriter(std::int64_t vocab_size, bool uses_bitmasks = true);

  // Begin the next row; calls of the other methods add to it. Rows ascend.
  void begin_row(std::int32_t row);
  // Discard the edits of the row so far.
  void discard_row();
  // Discard all edits, and keep the memory.
  void clear();

  void deny(const std::int32_t *ids, std::size_t count);
  void allow(const std::int32_t *ids, std::size_t count);
  void force(std::int32_t id);
  // Add values[i], which are finite, to the logit of ids[i].
  void bias(const std::int32_t *ids, const float *values, std::size_t count);
  void bitmask(const std::int32_t *words);
  // Deny ids that may be repeated, in any order. Sorts them, and removes what is repeated.
  void deny_set(std::vector<std::int32_t> &ids);

  // An empty vector for ids, for the use between two calls.
  [[nodiscard]] std::vector<std::int32_t> &scratch() {
    scratch_.clear();
    return scratch_;
  }

  [[nodiscard]] std::int64_t vocab_size() const noexcept { return vocab_size_; }
  [[nodiscard]] std::int32_t row() const noexcept { return row_; }
  // Number of edits, of all rows and of this row.
  [[nodiscard]] std::size_t size() const noexcept { return columns_.rows.size(); }
  [[nodiscard]] std::size_t size_of_row() const noexcept { return size() - row_edits_; }
  [[nodiscard]] const EditsColumns &columns() const noexcept { return columns_; }
  // The columns themselves; the writer is then empty.
  [[nodiscard]] EditsColumns take();

 private:
  void add(EditKind kind, const std::int32_t *ids, std::size_t count);
  void add_as_bitmask(EditKind kind, const std::int32_t *ids, std::size_t count);
  void begin_edit(EditKind kind, std::size_t count);
  void check(EditKind kind, const std::int32_t *ids, std::size_t count) const;

  std::int64_t vocab_size_;
  std::size_t words_;  // of a bitmask
  bool uses_bitmasks_;
  EditsColumns columns_;
  std::int32_t row_ = 0;
  // At the beginning of the row: the number of edits, and of those with values.
  std::size_t row_edits_ = 0;
  std::size_t row_biases_ = 0;
  std::size_t biases_ = 0;
  std::vector<std::uint64_t> seen_;  // a bit for each id, for deny_set; all 0 between calls
  std::vector<std::int32_t> scratch_;
};

}  // namespace logitport
