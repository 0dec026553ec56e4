#include "step_content.h"

#include "message_fields.h"

namespace logitport {
namespace {

constexpr std::size_t length_bytes = 4;

}  // namespace

void StepContent::add_request(std::int32_t slot, std::int32_t generation, History &history) {
  slots_.push_back(slot);
  generations_.push_back(generation);
  histories_.push_back(&history);
}

void StepContent::clear_requests() {
  slots_.clear();
  generations_.clear();
  histories_.clear();
  clear();
}

void StepContent::clear() {
  new_ids.clear();
  drafts.clear();
  draft_parents.clear();
  row_requests.clear();
  row_offsets.clear();
}

void StepContent::add_row_of_each_draft() {
  for (std::size_t index = 0; index < size(); ++index) {
    for (std::int32_t offset = 0; offset <= drafts.counts[index]; ++offset) {
      row_requests.push_back(static_cast<std::int32_t>(index));
      row_offsets.push_back(offset);
    }
  }
}

void StepContent::finish_rows() {
  bool is_default = row_requests.size() == size();
  for (std::size_t row = 0; row < row_requests.size() && is_default; ++row) {
    is_default = row_offsets[row] == 0 && row_requests[row] == static_cast<std::int32_t>(row);
  }
  if (is_default) {
    row_requests.clear();
  }
  if (row_requests.empty() || drafts.counts.empty()) {
    row_offsets.clear();
  }
}

std::string_view StepContent::serialize(std::uint64_t seq) {
  lengths_.clear();
  checksums_.clear();
  for (History *history : histories_) {
    lengths_.push_back(static_cast<std::int32_t>(history->length()));
    checksums_.push_back(history->checksum());
  }
  step_.clear();
  step_.column(fields::Step::slots, slots_);
  step_.column(fields::Step::generations, generations_);
  step_.column(fields::Step::base_lengths, lengths_);
  step_.column(fields::Step::history_crcs, checksums_);
  step_.column(fields::Step::new_token_counts, new_ids.counts);
  step_.column(fields::Step::new_token_ids, new_ids.ids);
  step_.column(fields::Step::row_requests, row_requests);
  step_.column(fields::Step::row_draft_offsets, row_offsets);
  step_.column(fields::Step::draft_counts, drafts.counts);
  step_.column(fields::Step::draft_token_ids, drafts.ids);
  step_.column(fields::Step::draft_parents, draft_parents);
  frame_.clear();
  frame_.resize(length_bytes);
  frame_.varint(fields::SessionRequest::seq, seq);
  frame_.bytes(fields::SessionRequest::step, step_.data());
  frame_.overwrite(0, static_cast<std::uint32_t>(frame_.data().size() - length_bytes));
  return frame_.data();
}

void StepContent::extend() {
  std::vector<std::int32_t> rows(row_requests.empty() ? 0 : size());
  for (const std::int32_t request : row_requests) {
    ++rows[static_cast<std::size_t>(request)];
  }
  std::size_t first = 0;
  for (std::size_t index = 0; index < new_ids.counts.size(); ++index) {
    const auto count = static_cast<std::size_t>(new_ids.counts[index]);
    histories_[index]->extend(new_ids.ids.data() + first, count);
    histories_[index]->add_rows(new_ids.counts[index], rows.empty() ? 1 : rows[index]);
    first += count;
  }
  new_ids.clear();
}

}  // namespace logitport
