#include "step_message.h"

#include <array>
#include <cstddef>

#include "message_reader.h"

namespace logitport {

bool read_step(std::string_view data, StepFrame &frame) {
  // By number of the field.
  const std::array<std::string_view *, 11> columns = {nullptr,
                                                      &frame.slots,
                                                      &frame.generations,
                                                      &frame.base_lengths,
                                                      &frame.history_crcs,
                                                      &frame.new_token_counts,
                                                      &frame.new_token_ids,
                                                      &frame.row_requests,
                                                      &frame.row_draft_offsets,
                                                      &frame.draft_counts,
                                                      &frame.draft_token_ids};
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.field == 0 || reader.field >= columns.size() || reader.is_varint || !columns[reader.field]->empty()) {
      return false;
    }
    *columns[reader.field] = reader.bytes;
  }
  return reader.is_at_end();
}

bool read_step_message(std::string_view data, StepMessage &message) {
  bool has_step = false;
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.field == 1 && reader.is_varint) {
      message.seq = reader.value;
    } else if (reader.field == 5 && !reader.is_varint && !has_step && read_step(reader.bytes, message.frame)) {
      has_step = true;
    } else {
      return false;
    }
  }
  return has_step && reader.is_at_end();
}

void StepReplyWriter::write(const StepReply &reply) {
  const PackedEdits &edits = *reply.edits;
  rest_.clear();  // the fields of StepEdits after the edits
  for (const AppliedRows &each : *reply.applied) {
    each_.clear();
    each_.bytes(1, each.key);
    each_.varint(2, static_cast<std::uint64_t>(each.rows));
    if (!each.display_name.empty()) {
      each_.bytes(3, each.display_name);
    }
    rest_.bytes(4, each_.data());
  }
  rest_.column(5, *reply.denied_rows);
  if (reply.ended_admissions != 0) {
    rest_.varint(6, static_cast<std::uint64_t>(reply.ended_admissions));
  }
  if (reply.should_move) {
    rest_.varint(8, 1);
  }
  const std::size_t edits_size = MessageWriter::size_of_column(edits.rows) +
                                 MessageWriter::size_of_column(edits.kinds) +
                                 MessageWriter::size_of_column(edits.offsets) +
                                 MessageWriter::size_of_column(edits.ids) + MessageWriter::size_of_column(edits.values);
  before_edits_.clear();
  before_edits_.begin(1, edits_size);
  response_.reserve(length_bytes + edits_size + rest_.data().size() + 32);  // 32: a number, and two fields' beginnings
  // From here on, nothing fails.
  response_.clear();
  response_.resize(length_bytes);
  response_.varint(1, reply.seq);
  response_.begin(5, before_edits_.data().size() + edits_size + rest_.data().size());
  response_.append(before_edits_);
  response_.column(1, edits.rows);
  response_.column(2, edits.kinds);
  response_.column(3, edits.offsets);
  response_.column(4, edits.ids);
  response_.column(5, edits.values);
  response_.append(rest_);
  response_.overwrite(0, static_cast<std::uint32_t>(message().size()));
}

void StepReplyWriter::release_large() {
  if (is_large()) {
    response_ = MessageWriter();
  }
}

}  // namespace logitport
