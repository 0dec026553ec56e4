#include "step_message.h"

#include <cstddef>

#include "message_fields.h"
#include "message_reader.h"

namespace logitport {
namespace {

// Null for a field that this version does not know.
std::string_view *column_of(StepFrame &frame, std::uint32_t tag) {
  switch (tag) {
    case fields::Step::slots.tag():
      return &frame.slots;
    case fields::Step::generations.tag():
      return &frame.generations;
    case fields::Step::base_lengths.tag():
      return &frame.base_lengths;
    case fields::Step::history_crcs.tag():
      return &frame.history_crcs;
    case fields::Step::new_token_counts.tag():
      return &frame.new_token_counts;
    case fields::Step::new_token_ids.tag():
      return &frame.new_token_ids;
    case fields::Step::row_requests.tag():
      return &frame.row_requests;
    case fields::Step::row_draft_offsets.tag():
      return &frame.row_draft_offsets;
    case fields::Step::draft_counts.tag():
      return &frame.draft_counts;
    case fields::Step::draft_token_ids.tag():
      return &frame.draft_token_ids;
    case fields::Step::draft_parents.tag():
      return &frame.draft_parents;
    default:
      return nullptr;
  }
}

// Returns false for a field twice, or one that this version does not know.
bool read_step(std::string_view data, StepFrame &frame) {
  MessageReader reader(data);
  while (reader.next()) {
    std::string_view *column = column_of(frame, reader.tag);
    if (column == nullptr || !column->empty()) {
      return false;
    }
    *column = reader.bytes;
  }
  return reader.is_at_end();
}

// As Python's protobuf: nothing for a number that is 0, and for empty text.
void write_event(const EventMessage &event, MessageWriter &message) {
  const auto number = [&message](VarintField field, std::int32_t value) {
    if (value != 0) {
      message.varint(field, static_cast<std::uint64_t>(value));
    }
  };
  const auto text = [&message](BytesField field, std::string_view value) {
    if (!value.empty()) {
      message.bytes(field, value);
    }
  };
  number(fields::Event::slot, event.slot);
  text(fields::Event::processor, event.processor);
  text(fields::Event::name, event.name);
  number(fields::Event::position, event.position);
  text(fields::Event::values, event.values);
  number(fields::Event::left_out, event.left_out);
  number(fields::Event::draft_offset, event.draft_offset);
}

}  // namespace

bool read_step_message(std::string_view data, StepMessage &message) {
  bool has_step = false;
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::SessionRequest::seq.tag()) {
      message.seq = reader.value;
    } else if (reader.tag == fields::SessionRequest::step.tag() && !has_step &&
               read_step(reader.bytes, message.frame)) {
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
    each_.bytes(fields::RowsApplied::processor, each.key);
    each_.varint(fields::RowsApplied::rows, static_cast<std::uint64_t>(each.rows));
    if (!each.display_name.empty()) {
      each_.bytes(fields::RowsApplied::display_name, each.display_name);
    }
    rest_.bytes(fields::StepEdits::applied, each_.data());
  }
  rest_.column(fields::StepEdits::all_denied_rows, *reply.denied_rows);
  if (reply.ended_admissions != 0) {
    rest_.varint(fields::StepEdits::ended_admissions, static_cast<std::uint64_t>(reply.ended_admissions));
  }
  if (reply.should_move) {
    rest_.varint(fields::StepEdits::should_move, 1);
  }
  for (const EventMessage &each : *reply.events) {
    each_.clear();
    write_event(each, each_);
    rest_.bytes(fields::StepEdits::events, each_.data());
  }
  std::size_t edits_size = 0;
  for_each_column(edits, [&edits_size](BytesField field, const auto &column) {
    edits_size += MessageWriter::size_of_column(field, column);
  });
  before_edits_.clear();
  before_edits_.begin(fields::StepEdits::edits, edits_size);
  response_.reserve(length_bytes + edits_size + rest_.data().size() + 32);  // 32: a number, and two fields' beginnings
  // From here on, nothing fails.
  response_.clear();
  response_.resize(length_bytes);
  response_.varint(fields::SessionResponse::seq, reply.seq);
  response_.begin(fields::SessionResponse::edits, before_edits_.data().size() + edits_size + rest_.data().size());
  response_.append(before_edits_);
  for_each_column(edits, [this](BytesField field, const auto &column) { response_.column(field, column); });
  response_.append(rest_);
  response_.overwrite(0, static_cast<std::uint32_t>(message().size()));
}

void StepReplyWriter::release_large() {
  if (is_large()) {
    response_ = MessageWriter();
  }
}

}  // namespace logitport
