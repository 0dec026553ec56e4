// Whether the reply to a step fits its logits. A server is not trusted: an index that it sends must be in its range.
#pragma once

#include <cstdint>
#include <string_view>

#include "edits_writer.h"
#include "reply_message.h"

namespace logitport {

// What is wrong with a reply; "" if it fits. Edits that are in another order than that of their rows are sorted, into
// `sorted`, and the reply is then a view of that.
std::string_view find_problem(ReplyMessage &reply, LogitsShape shape, PackedEdits &sorted);

// Whether these are rows in ascending order, each below `count`.
bool are_rows(const Column<std::int32_t> &rows, std::int64_t count) noexcept;

}  // namespace logitport
