// Reads the message of the reply to a step: `SessionResponse` in proto/logitport/v1/processing.proto.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "edits_reader.h"

namespace logitport {

// A reply with edits, counts and events only. Its columns and strings are views of the message.
struct ReplyMessage {
  // A processor, and the number of rows that it was applied to.
  struct Applied {
    std::string_view key, display_name;
    std::int32_t rows = 0;
  };

  // As the message of this name.
  struct Event {
    std::int32_t slot = 0, position = 0, left_out = 0;
    std::string_view processor, name, values;
  };

  std::uint64_t seq = 0;
  EditsView edits;
  std::vector<Applied> applied;
  std::vector<Event> events;
  Column<std::int32_t> denied_rows;
  std::int32_t ended_admissions = 0;
  bool should_move = false;
};

// Returns false for any other message: a field twice, a column that is no whole number of elements, a field that most
// replies do not have, such as failures, or one that this version does not know. The edits are not checked.
bool read_reply_message(std::string_view data, ReplyMessage &message);

}  // namespace logitport
