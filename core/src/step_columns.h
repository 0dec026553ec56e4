// The columns of a Step frame: read and checked, as server/logitport_session/steps/columns.py does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace logitport {

// The columns as they arrived. See `Step` in proto/logitport/v1/processing.proto.
struct StepFrame {
  std::string_view slots, generations, draft_counts, draft_parents, row_requests, row_draft_offsets;  // the layout
  std::string_view base_lengths, history_crcs, new_token_counts, new_token_ids, draft_token_ids;

  // Not less than the size of its message.
  [[nodiscard]] std::size_t bytes() const noexcept;
};

// A row of the step's logits.
struct StepRow {
  std::int32_t request;  // its index in the columns
  std::int32_t draft_offset;
};

// The part of a frame that describes the batch. It is often the same in many consecutive steps, so it is kept.
class StepLayout {
 public:
  // Whether the frame's layout columns are those that were read last.
  [[nodiscard]] bool matches(const StepFrame &frame) const noexcept;
  // Returns false, and is empty, if a column is malformed.
  bool read(const StepFrame &frame, std::int32_t max_draft_tokens);

  [[nodiscard]] std::size_t size() const noexcept { return slots.size(); }

  // The draft offset of the parent of the draft with this offset, 1 or more; 0 is the end of the history.
  [[nodiscard]] std::int32_t parent(std::size_t request, std::int32_t offset) const noexcept {
    return parents.empty() ? offset - 1 : parents[draft_begins[request] + static_cast<std::size_t>(offset) - 1];
  }
  // The number of drafts that a row with this offset has seen.
  [[nodiscard]] std::int32_t depth(std::size_t request, std::int32_t offset) const noexcept;

  std::vector<std::int32_t> slots, generations, draft_counts;
  std::vector<std::int32_t> draft_depths;  // of each request: the most drafts that a row can see
  std::vector<StepRow> rows;
  // The rows in the order in which each draft is appended once: those of a request together, and depth first. Empty if
  // this is the order of the rows, or if those of each request ascend along its chain.
  std::vector<std::size_t> visits;
  // draft_begins[i]: where the drafts of request i begin in their column.
  std::vector<std::size_t> draft_begins;
  std::size_t drafts = 0;  // of all requests
  // For each draft, the offset of its parent. Empty if all drafts are chains.
  std::vector<std::int32_t> parents;

 private:
  bool read_columns(const StepFrame &frame, std::int32_t max_draft_tokens);
  bool read_parents(const StepFrame &frame);
  bool read_rows(const StepFrame &frame);
  void order_visits();
  void rank_drafts(std::size_t request, std::int32_t *ranks) const;
  [[nodiscard]] bool has_distinct_slots() const;

  bool valid_ = false;
  std::string slots_column_, generations_column_, draft_counts_column_, draft_parents_column_, row_requests_column_,
      row_offsets_column_;
};

// The part of a frame that changes with every step. Element i belongs to request i of the layout.
class StepColumns {
 public:
  // Returns false if a column has a wrong length, or a count is negative. The ids are not checked.
  bool read(const StepFrame &frame, const StepLayout &layout);

  std::vector<std::int32_t> base_lengths, new_counts, new_ids, draft_ids;
  std::vector<std::uint32_t> history_crcs;
};

}  // namespace logitport
