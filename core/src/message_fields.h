// Fields of the messages that the core reads and writes. Generated from proto/logitport/v1: run `make proto`.
#pragma once

#include "message_field.h"

namespace logitport::fields {

struct Edits {
  static constexpr BytesField rows{1};
  static constexpr BytesField kinds{2};
  static constexpr BytesField offsets{3};
  static constexpr BytesField ids{4};
  static constexpr BytesField values{5};
};

struct Event {
  static constexpr VarintField slot{1};
  static constexpr BytesField processor{2};
  static constexpr BytesField name{3};
  static constexpr VarintField position{4};
  static constexpr BytesField values{5};
  static constexpr VarintField left_out{6};
  static constexpr VarintField draft_offset{7};
};

struct RowsApplied {
  static constexpr BytesField processor{1};
  static constexpr BytesField display_name{3};
  static constexpr VarintField rows{2};
};

struct SessionRequest {
  static constexpr VarintField seq{1};
  static constexpr BytesField open{2};
  static constexpr BytesField add{3};
  static constexpr BytesField remove{4};
  static constexpr BytesField step{5};
  static constexpr BytesField logits{6};
  static constexpr BytesField open_region{7};
  static constexpr BytesField share_device_memory{8};
  static constexpr BytesField close_region{9};
  static constexpr BytesField get_programs{10};
};

struct SessionResponse {
  static constexpr VarintField seq{1};
  static constexpr BytesField opened{2};
  static constexpr BytesField added{3};
  static constexpr BytesField removed{4};
  static constexpr BytesField edits{5};
  static constexpr BytesField logits{6};
  static constexpr BytesField error{7};
  static constexpr BytesField region_opened{8};
  static constexpr BytesField region_closed{9};
  static constexpr BytesField programs{10};
};

struct Step {
  static constexpr BytesField slots{1};
  static constexpr BytesField generations{2};
  static constexpr BytesField base_lengths{3};
  static constexpr BytesField history_crcs{4};
  static constexpr BytesField new_token_counts{5};
  static constexpr BytesField new_token_ids{6};
  static constexpr BytesField row_requests{7};
  static constexpr BytesField row_draft_offsets{8};
  static constexpr BytesField draft_counts{9};
  static constexpr BytesField draft_token_ids{10};
  static constexpr BytesField draft_parents{11};
};

struct StepEdits {
  static constexpr BytesField edits{1};
  static constexpr BytesField logits_rows{2};
  static constexpr BytesField failures{3};
  static constexpr BytesField applied{4};
  static constexpr BytesField all_denied_rows{5};
  static constexpr VarintField ended_admissions{6};
  static constexpr BytesField later_edits{7};
  static constexpr VarintField should_move{8};
  static constexpr BytesField events{9};
};

}  // namespace logitport::fields
