// The frame of a client's step: its columns, from the requests, their ids and their drafts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "history.h"
#include "message_writer.h"

namespace logitport {

// Ids of each request of a step, one list after the other.
struct StepIds {
  std::vector<std::int32_t> counts, ids;

  void clear() {
    counts.clear();
    ids.clear();
  }
  // End the list of a request, which began with this number of ids.
  void end_list(std::size_t begin) { counts.push_back(static_cast<std::int32_t>(ids.size() - begin)); }
};

// Writes the frames of steps with the same requests in the same order, as `step_frame` of
// client/logitport/session/steps/step_frame.py, and adds the new ids to the histories. The ids are not checked.
class StepContent {
 public:
  // The history stays where it is, and exists, while this object is used.
  void add_request(std::int32_t slot, std::int32_t generation, History &history);
  void clear_requests();
  // Begin another step.
  void clear();

  [[nodiscard]] std::size_t size() const noexcept { return histories_.size(); }
  [[nodiscard]] History &history(std::size_t request) const noexcept { return *histories_[request]; }
  [[nodiscard]] std::int32_t slot(std::size_t request) const noexcept { return slots_[request]; }
  // Number of draft tokens of a request.
  [[nodiscard]] std::int32_t draft_count(std::size_t request) const noexcept {
    return drafts.counts.empty() ? 0 : drafts.counts[request];
  }
  [[nodiscard]] std::size_t row_count() const noexcept { return row_requests.empty() ? size() : row_requests.size(); }
  // The request of a row, as an index.
  [[nodiscard]] std::size_t request_of(std::size_t row) const noexcept {
    return row_requests.empty() ? row : static_cast<std::size_t>(row_requests[row]);
  }

  // Add a row of each request, and one more for each of its drafts.
  void add_row_of_each_draft();
  // Remove columns of rows that state nothing but the default.
  void finish_rows();

  // The step as a `logitport.v1.SessionRequest` after its length, uint32. Lengths and checksums of the histories are
  // the present ones. Valid until the next call.
  [[nodiscard]] std::string_view serialize(std::uint64_t seq);
  // Append the new ids to the histories. `serialize` then makes the frame that repeats the step.
  void extend();

  // Of the step. `draft_parents` is empty if all drafts are chains; the columns of rows if row i belongs to request i.
  StepIds new_ids, drafts;
  std::vector<std::int32_t> draft_parents, row_requests, row_offsets;

 private:
  std::vector<History *> histories_;
  std::vector<std::int32_t> slots_, generations_, lengths_;
  std::vector<std::uint32_t> checksums_;
  MessageWriter step_, frame_;
};

}  // namespace logitport
