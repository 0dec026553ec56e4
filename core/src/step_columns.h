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
  std::string_view slots, generations, draft_counts, row_requests, row_draft_offsets;  // the layout
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
  // Returns false, and is empty, if a column is malformed, or if the rows of a request do not have ascending draft
  // offsets: each such row would need the drafts again.
  bool read(const StepFrame &frame, std::int32_t max_draft_tokens);

  [[nodiscard]] std::size_t size() const noexcept { return slots.size(); }

  std::vector<std::int32_t> slots, generations, draft_counts;
  std::vector<StepRow> rows;
  // draft_begins[i]: where the drafts of request i begin in their column.
  std::vector<std::size_t> draft_begins;
  std::size_t drafts = 0;  // of all requests

 private:
  bool read_columns(const StepFrame &frame, std::int32_t max_draft_tokens);
  bool read_rows(const StepFrame &frame);
  [[nodiscard]] bool has_distinct_slots() const;

  bool valid_ = false;
  std::string slots_column_, generations_column_, draft_counts_column_, row_requests_column_, row_offsets_column_;
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
