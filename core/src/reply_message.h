// Reads the message of the reply to a step: `SessionResponse` in proto/logitport/v1/processing.proto.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "edits_reader.h"

namespace logitport {

// A `SessionResponse`: its number, and the message that it holds, with the tag of that field. Views of the message.
struct ResponseMessage {
  std::uint64_t seq = 0;
  std::uint32_t tag = 0;
  std::string_view body;
  bool is_usual = true;  // whether it has no other field
};

// An error, as the message of this name.
struct ErrorMessage {
  std::int32_t code = 0;
  std::string_view message, processor, remote_traceback, output;
};

// The reply to a step. Its columns and strings are views of the message.
struct ReplyMessage {
  // A processor, and the number of rows that it was applied to.
  struct Applied {
    std::string_view key, display_name;
    std::int32_t rows = 0;
  };

  // As the message of this name.
  struct Event {
    std::int32_t slot = 0, position = 0, left_out = 0, draft_offset = 0;
    std::string_view processor, name, values;
  };

  // As the message of this name.
  struct Failure {
    std::int32_t slot = 0;
    ErrorMessage error;
    bool skipped = false;
  };

  std::uint64_t seq = 0;
  EditsView edits;
  std::vector<Applied> applied;
  std::vector<Event> events;
  Column<std::int32_t> denied_rows;
  std::int32_t ended_admissions = 0;
  bool should_move = false;
  // Fields that most replies do not have.
  Column<std::int32_t> logits_rows;
  std::vector<Failure> failures;
  bool has_later_edits = false;
  // Whether there is no such field, nor one that this version does not know.
  bool is_usual = true;
};

// Returns false for another message than a `SessionResponse`.
bool read_response(std::string_view data, ResponseMessage &response);
// Returns false for another message than an `Error`.
bool read_error(std::string_view data, ErrorMessage &error);
// Returns false for another message than a `Failure`.
bool read_failure(std::string_view data, ReplyMessage::Failure &failure);
// Read a `StepEdits`, or a `StepLogitsEdited` where its fields are the same. Returns false for a column twice, or one
// that is no whole number of elements. The edits are not checked.
bool read_step_edits(std::string_view data, ReplyMessage &message);
// Read `failures`, `applied`, `all_denied_rows` and `events` of a `StepLogitsEdited`, in addition to those of its step.
bool read_logits_edited(std::string_view data, ReplyMessage &message);

// Returns false for any other message than a reply to a step with usual fields only. The edits are not checked.
bool read_reply_message(std::string_view data, ReplyMessage &message);

}  // namespace logitport
