// Reads the message of a step, and writes its reply: `SessionRequest` and `SessionResponse` in
// proto/logitport/v1/processing.proto.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "edits_writer.h"
#include "message_writer.h"
#include "prefetch.h"
#include "step_columns.h"

namespace logitport {

// A frame with a step. The columns are views of the message.
struct StepMessage {
  std::uint64_t seq = 0;
  StepFrame frame;
};

// Returns false for any other message: a field twice, or one that this version does not know.
bool read_step_message(std::string_view data, StepMessage &message);

// A processor, and the number of rows that it was applied to.
struct AppliedRows {
  std::string_view key;
  std::string_view display_name;
  std::int64_t rows;
};

// An event, as the message of this name. `name` is empty for one that only counts others.
struct EventMessage {
  std::int32_t slot;
  std::string_view processor;
  std::string_view name;
  std::int32_t position;
  std::string values;
  std::int32_t left_out;
  std::int32_t draft_offset;
};

struct StepReply {
  std::uint64_t seq;
  const PackedEdits *edits;
  const std::vector<std::int32_t> *denied_rows;
  const std::vector<AppliedRows> *applied;
  std::int32_t ended_admissions;
  bool should_move;
  const std::vector<EventMessage> *events;
};

// Writes replies, each into the memory of the last one.
class StepReplyWriter {
 public:
  // Write a reply over the last one, which is kept if memory is lacking.
  void write(const StepReply &reply);

  // The last reply; the same after its length, as the local transport sends it. Empty before the first reply, and when
  // the memory was freed.
  [[nodiscard]] std::string_view message() const noexcept {
    std::string_view message = framed();
    message.remove_prefix(std::min(message.size(), length_bytes));
    return message;
  }
  [[nodiscard]] std::string_view framed() const noexcept { return response_.data(); }

  void prefetch() const noexcept { prefetch_to_write(framed().data(), framed().size()); }
  [[nodiscard]] bool is_large() const noexcept { return response_.data().capacity() > max_kept_bytes; }
  // Free the memory if it is large. The last reply goes with it.
  void release_large();

 private:
  static constexpr std::size_t length_bytes = 4, max_kept_bytes = std::size_t{1} << 20U;

  MessageWriter response_, rest_, each_, before_edits_;
};

}  // namespace logitport
