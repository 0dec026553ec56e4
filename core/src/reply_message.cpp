#include "reply_message.h"

#include <array>
#include <cstddef>
#include <limits>

#include "message_fields.h"
#include "message_reader.h"

namespace logitport {
namespace {

template <typename T>
bool read_column(std::string_view bytes, Column<T> &column) {
  column = {bytes.data(), static_cast<std::int64_t>(bytes.size() / sizeof(T))};
  return bytes.size() % sizeof(T) == 0;
}

bool read_number(const MessageReader &reader, std::int32_t &number) {
  number = static_cast<std::int32_t>(reader.value);
  return reader.value <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
}

bool read_edits(std::string_view data, EditsView &edits) {
  static constexpr std::array<std::int32_t, 1> no_offsets{};  // the column of no edits, which may also be empty
  edits = {};
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = false;
    for_each_column(edits, [&reader, &valid](BytesField field, auto &column) {
      if (reader.tag == field.tag()) {
        valid = column.size() == 0 && read_column(reader.bytes, column);  // not a field twice
      }
    });
    if (!valid) {
      return false;
    }
  }
  if (edits.offsets.size() == 0) {
    edits.offsets = {no_offsets.data(), no_offsets.size()};
  }
  return reader.is_at_end();
}

bool read_applied(std::string_view data, ReplyMessage::Applied &applied, bool &is_usual) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::RowsApplied::processor.tag()) {
      applied.key = reader.bytes;
    } else if (reader.tag == fields::RowsApplied::display_name.tag()) {
      applied.display_name = reader.bytes;
    } else if (reader.tag != fields::RowsApplied::rows.tag()) {
      is_usual = false;
    } else if (!read_number(reader, applied.rows)) {
      return false;
    }
  }
  return reader.is_at_end();
}

bool read_event(std::string_view data, ReplyMessage::Event &event, bool &is_usual) {
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = true;
    switch (reader.tag) {
      case fields::Event::slot.tag():
        valid = read_number(reader, event.slot);
        break;
      case fields::Event::processor.tag():
        event.processor = reader.bytes;
        break;
      case fields::Event::name.tag():
        event.name = reader.bytes;
        break;
      case fields::Event::position.tag():
        valid = read_number(reader, event.position);
        break;
      case fields::Event::values.tag():
        event.values = reader.bytes;
        break;
      case fields::Event::left_out.tag():
        valid = read_number(reader, event.left_out);
        break;
      case fields::Event::draft_offset.tag():
        valid = read_number(reader, event.draft_offset);
        is_usual &= event.draft_offset == 0;
        break;
      default:
        is_usual = false;
    }
    if (!valid) {
      return false;
    }
  }
  return reader.is_at_end();
}

// The text of a field of bytes, if it is this one.
bool read_text(const MessageReader &reader, BytesField field, std::string_view &text) {
  if (reader.tag != field.tag()) {
    return false;
  }
  text = reader.bytes;
  return true;
}

}  // namespace

bool read_error(std::string_view data, ErrorMessage &error) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::Error::code.tag()) {
      error.code = static_cast<std::int32_t>(reader.value);
    } else {  // other fields are of a later version
      static_cast<void>(read_text(reader, fields::Error::message, error.message) ||
                        read_text(reader, fields::Error::processor, error.processor) ||
                        read_text(reader, fields::Error::remote_traceback, error.remote_traceback) ||
                        read_text(reader, fields::Error::output, error.output));
    }
  }
  return reader.is_at_end();
}

bool read_failure(std::string_view data, ReplyMessage::Failure &failure) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::Failure::slot.tag()) {
      if (!read_number(reader, failure.slot)) {
        return false;
      }
    } else if (reader.tag == fields::Failure::error.tag()) {
      if (!read_error(reader.bytes, failure.error)) {
        return false;
      }
    } else if (reader.tag == fields::Failure::skipped.tag()) {
      failure.skipped = reader.value != 0;
    }
  }
  return reader.is_at_end();
}

bool read_step_edits(std::string_view data, ReplyMessage &message) {
  bool has_edits = false;
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = true;
    switch (reader.tag) {
      case fields::StepEdits::edits.tag():
        valid = !has_edits && read_edits(reader.bytes, message.edits);
        has_edits = true;
        break;
      case fields::StepEdits::applied.tag():
        valid = read_applied(reader.bytes, message.applied.emplace_back(), message.is_usual);
        break;
      case fields::StepEdits::events.tag():
        valid = read_event(reader.bytes, message.events.emplace_back(), message.is_usual);
        break;
      case fields::StepEdits::all_denied_rows.tag():
        valid = read_column(reader.bytes, message.denied_rows);
        break;
      case fields::StepEdits::ended_admissions.tag():
        valid = read_number(reader, message.ended_admissions);
        break;
      case fields::StepEdits::should_move.tag():
        message.should_move = reader.value != 0;
        break;
      case fields::StepEdits::failures.tag():
        valid = read_failure(reader.bytes, message.failures.emplace_back());
        message.is_usual = false;
        break;
      case fields::StepEdits::logits_rows.tag():
        valid = read_column(reader.bytes, message.logits_rows);
        message.is_usual = false;
        break;
      case fields::StepEdits::later_edits.tag():
        message.has_later_edits = true;
        message.is_usual = false;
        break;
      default:
        message.is_usual = false;
    }
    if (!valid) {
      return false;
    }
  }
  return reader.is_at_end() && (has_edits || read_edits({}, message.edits));
}

bool read_logits_edited(std::string_view data, ReplyMessage &message) {
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = true;
    switch (reader.tag) {
      case fields::StepLogitsEdited::failures.tag():
        valid = read_failure(reader.bytes, message.failures.emplace_back());
        break;
      case fields::StepLogitsEdited::applied.tag():
        valid = read_applied(reader.bytes, message.applied.emplace_back(), message.is_usual);
        break;
      case fields::StepLogitsEdited::events.tag():
        valid = read_event(reader.bytes, message.events.emplace_back(), message.is_usual);
        break;
      case fields::StepLogitsEdited::all_denied_rows.tag():
        valid = read_column(reader.bytes, message.denied_rows);
        break;
      default:  // logits that were not in a region, or a field of a later version
        break;
    }
    if (!valid) {
      return false;
    }
  }
  return reader.is_at_end();
}

bool read_response(std::string_view data, ResponseMessage &response) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::SessionResponse::seq.tag()) {
      response.seq = reader.value;
    } else if ((reader.tag & 7U) == static_cast<std::uint32_t>(WireType::length_delimited)) {
      if (response.tag != 0) {
        return false;
      }
      response.tag = reader.tag;
      response.body = reader.bytes;
    } else {
      response.is_usual = false;
    }
  }
  return reader.is_at_end();
}

bool read_reply_message(std::string_view data, ReplyMessage &message) {
  ResponseMessage response;
  if (!read_response(data, response) || !response.is_usual || response.tag != fields::SessionResponse::edits.tag()) {
    return false;
  }
  message.seq = response.seq;
  return read_step_edits(response.body, message) && message.is_usual;
}

}  // namespace logitport
