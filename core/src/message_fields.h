// Fields of the messages that the core reads and writes. Generated from proto/logitport/v1: run `make proto`.
#pragma once

#include "message_field.h"

namespace logitport::fields {

struct AddRequests {
  static constexpr BytesField requests{1};
  static constexpr VarintField in_background{2};
};

struct AdmittedChain {
  static constexpr BytesField processors{1};
  static constexpr BytesField programs{2};
  static constexpr VarintField follows_from_history{3};
  static constexpr VarintField only_denies{4};
};

struct Edits {
  static constexpr BytesField rows{1};
  static constexpr BytesField kinds{2};
  static constexpr BytesField offsets{3};
  static constexpr BytesField ids{4};
  static constexpr BytesField values{5};
};

struct Error {
  static constexpr VarintField code{1};
  static constexpr BytesField message{2};
  static constexpr BytesField processor{3};
  static constexpr BytesField remote_traceback{4};
  static constexpr BytesField output{5};
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

struct Failure {
  static constexpr VarintField slot{1};
  static constexpr BytesField error{2};
  static constexpr VarintField skipped{3};
};

struct LocalTransport {
  static constexpr BytesField socket_path{1};
  static constexpr BytesField access_token{2};
  static constexpr VarintField max_message_bytes{3};
  static constexpr BytesField device_uuid{4};
};

struct OpenRegion {
  static constexpr VarintField size_bytes{1};
  static constexpr VarintField replaces{2};
};

struct OpenSession {
  static constexpr VarintField vocab_size{1};
  static constexpr BytesField datatype{2};
  static constexpr BytesField device{3};
  static constexpr BytesField model_name{4};
  static constexpr BytesField tokenizer_id{5};
  static constexpr BytesField eos_token_ids{6};
  static constexpr VarintField max_requests{7};
  static constexpr VarintField max_draft_tokens{8};
  static constexpr BytesField engine{9};
  static constexpr VarintField runs_programs{10};
  static constexpr VarintField can_move{11};
  static constexpr VarintField expected_requests{12};
};

struct Processor {
  static constexpr BytesField builtin{1};
  static constexpr BytesField name{2};
  static constexpr BytesField digest{3};
  static constexpr BytesField payload{4};
};

struct ProcessorCall {
  static constexpr BytesField processor{1};
  static constexpr BytesField params{2};
};

struct Region {
  static constexpr VarintField region_id{1};
  static constexpr VarintField byte_offset{2};
};

struct RegionOpened {
  static constexpr VarintField region_id{1};
};

struct RemoveRequests {
  static constexpr BytesField slots{1};
  static constexpr BytesField generations{2};
};

struct Request {
  static constexpr BytesField request_id{1};
  static constexpr BytesField prompt_token_ids{2};
  static constexpr BytesField output_token_ids{3};
  static constexpr BytesField prompt_ids{8};
  static constexpr BytesField output_ids{9};
  static constexpr BytesField processors{4};
  static constexpr BytesField sampling_params{5};
  static constexpr BytesField tenant{6};
  static constexpr VarintField on_error{7};
};

struct RequestsAdded {
  static constexpr BytesField failures{1};
  static constexpr BytesField reads_logits{2};
  static constexpr BytesField chains{3};
  static constexpr VarintField regions_retired{4};
  static constexpr BytesField pending{5};
  static constexpr BytesField ended{6};
};

struct RowsApplied {
  static constexpr BytesField processor{1};
  static constexpr BytesField display_name{3};
  static constexpr VarintField rows{2};
};

struct SessionOpened {
  static constexpr BytesField session_id{1};
  static constexpr VarintField max_requests{2};
  static constexpr BytesField server_version{3};
  static constexpr BytesField local_transport{4};
  static constexpr FloatField step_deadline_seconds{5};
  static constexpr FloatField add_deadline_seconds{6};
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

struct SlottedRequest {
  static constexpr VarintField slot{1};
  static constexpr VarintField generation{2};
  static constexpr BytesField request{3};
  static constexpr VarintField programs_on_server{4};
  static constexpr BytesField traceparent{5};
  static constexpr BytesField tracestate{6};
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

struct StepLogits {
  static constexpr BytesField logits{1};
};

struct StepLogitsEdited {
  static constexpr BytesField logits{1};
  static constexpr BytesField failures{2};
  static constexpr BytesField applied{3};
  static constexpr BytesField all_denied_rows{4};
  static constexpr BytesField events{5};
};

struct Tensor {
  static constexpr BytesField datatype{1};
  static constexpr BytesField shape{2};
  static constexpr BytesField raw{3};
  static constexpr BytesField region{4};
};

}  // namespace logitport::fields
