// Events: what states report of a request at one row.
// The counterpart of client/logitport/core/row_events.py, which states the limits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace logitport {

// The name of an event, and of its values; "" for a value that it does not have.
struct EventKind {
  std::string_view name;
  std::array<std::string_view, 2> values;
};

// All events of the states. Other states add theirs here.
inline constexpr EventKind budget_hit{"budget_hit", {"at", ""}};  // ids in the thinking block
inline constexpr EventKind ids_denied{"ids_denied", {"", ""}};
inline constexpr EventKind loop_found{"loop_found", {"period", "begin"}};  // begin: index in the output

// An event that a state has written.
struct RowEvent {
  std::int32_t row;
  std::size_t processor;  // its number in the session
  const EventKind *kind;
  std::array<std::int64_t, 2> values;

  // The values as a JSON object; "" if there are none.
  [[nodiscard]] std::string json() const;
};

// An event of a request in a step, as the message `Event`.
struct RequestEvent {
  std::int32_t slot;
  std::int32_t position;
  std::int32_t draft_offset;  // 0 if the row has seen so many drafts
  RowEvent event;
};

constexpr std::size_t max_step_events = 1024;

}  // namespace logitport
